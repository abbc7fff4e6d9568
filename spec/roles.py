"""The things of which the scheduler's state is made, and the constants that bound them."""

from kvproof.spec.expression import Constant
from kvproof.spec.rows import Role

BLOCK_SIZE = Constant("BLOCK_SIZE", "tokens of KV that one block holds")
TOTAL_BLOCKS = Constant("TOTAL_BLOCKS", "blocks that requests can use; the null block is not one")
TOKEN_BUDGET = Constant("TOKEN_BUDGET", "tokens that one step may schedule")
MAX_RUNNING = Constant("MAX_RUNNING", "requests that may run at once")

WATERMARK = Constant("WATERMARK", "blocks kept free by admissions while others run", minimum=0)
MAX_DRAFTS = Constant("MAX_DRAFTS", "draft tokens that a request may have", minimum=0)
LOOKAHEAD = Constant("LOOKAHEAD", "slots that a table keeps beyond its tokens", minimum=0)

ENCODER_SLOTS = Constant("ENCODER_SLOTS", "embeddings that the encoder cache holds", minimum=0)
ENCODER_BUDGET = Constant("ENCODER_BUDGET", "embeddings that one step may compute", minimum=0)

CONSTANTS = (
    BLOCK_SIZE,
    TOTAL_BLOCKS,
    TOKEN_BUDGET,
    MAX_RUNNING,
    WATERMARK,
    MAX_DRAFTS,
    LOOKAHEAD,
    ENCODER_SLOTS,
    ENCODER_BUDGET,
)

request = Role("request", "a row of the request table", plural="requests")
block = Role(
    "block",
    "a KV block other than the null block",
    plural="blocks",
    count=TOTAL_BLOCKS,
    first=1,
)
fence = Role("fence", "a released block table that a frame may still touch", plural="fences")
item = Role("item", "an entry of the encoder cache", plural="items")
pool = Role("pool", "the counts over all blocks and requests", single=True)
step = Role("step", "the scheduler's pass and the frames it has dispatched", single=True)

ROLES = (request, block, fence, item, pool, step)
