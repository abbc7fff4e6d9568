"""A complete engine loop: eight prompts, a model, and a pool too small for all at once."""

from collections import defaultdict

from kvproof.runtime import Request, Scheduler, SchedulerConfig
from kvproof.runtime.engine import load_model

PROMPTS = [
    "The sea",
    "A ship leaves the harbour at dawn",
    "Nobody has counted",
    "In the north, where the winters are long,",
    "She opened the letter",
    "Rain",
    "He said that the bridge would hold",
    "Twelve horses",
]

model = load_model()  # random and tiny; load_model("FILE.gguf") for a real one

# A request needs up to 17 blocks, and 24 can be had; block 0 pads the tables and is nobody's.
config = SchedulerConfig(num_blocks=25, block_size=4, max_model_len=2048)
pool = model.new_pool(config.num_blocks, config.block_size)
scheduler = Scheduler(config)

for number, prompt in enumerate(PROMPTS):
    tokens = model.tokenizer.encode(prompt)
    scheduler.add_request(Request(f"request-{number}", tokens, max_tokens=24))

replies: defaultdict[str, list[int]] = defaultdict(list)
while scheduler.has_unfinished_requests():
    step = scheduler.schedule()  # decide: who runs, on which blocks
    logits = model.forward(step.to_tensors(model.device), pool)  # compute
    for output in scheduler.update(step, logits.argmax(dim=-1).cpu()):  # account
        replies[output.request_id] += output.new_token_ids

for name, reply in sorted(replies.items()):
    print(f"{name}: {len(reply)} tokens, {reply[:6]} ...")
statistics = scheduler.statistics()
print(f"{statistics.num_preemptions} preemptions; ", end="")
print(f"{statistics.num_free_blocks} of {config.num_usable_blocks} blocks are free again")
