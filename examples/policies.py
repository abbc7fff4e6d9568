"""Two policies of one line each, beside the usual order: who is admitted, and who is preempted."""

from kvproof.runtime import Request, RunningView, Scheduler, SchedulerConfig, WaitingRequest


def shortest_remaining_first(request: WaitingRequest) -> int:
    """Admit the request that has the fewest tokens left to compute and to sample."""
    return request.known + request.remaining


def longest_remaining(running: RunningView) -> int:
    """Preempt the request that has the most tokens left to sample."""
    return int(running.rows[running.remaining.argmax()])


def mean_finish(scheduler: Scheduler) -> float:
    """Return in which step, on average, a request of a mixed workload ends."""
    for number in range(48):
        output_tokens = 96 if number % 4 == 0 else 8
        scheduler.add_request(Request(f"request-{number}", [number] * 32, output_tokens))
    ends = []
    while scheduler.has_unfinished_requests():
        step = scheduler.schedule()
        sampled = [0] * len(step.sampled_req_ids)  # a model would compute these
        ends += [step.step for _ in scheduler.update(step, sampled).finished()]
    return sum(ends) / len(ends)


def main() -> None:
    """Run the same workload in the usual order, and with the two policies."""
    config = SchedulerConfig(num_blocks=65, max_num_seqs=8, max_num_batched_tokens=256)
    usual = mean_finish(Scheduler(config))
    shortest = mean_finish(
        Scheduler(config, order=shortest_remaining_first, choose_victim=longest_remaining)
    )
    print(f"first come, first served: a request ends in step {usual:.0f}, on average")
    print(f"shortest remaining first: in step {shortest:.0f}")


if __name__ == "__main__":
    main()
