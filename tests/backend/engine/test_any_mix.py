"""Requests of every kind in any order, in pools that are barely large enough: each gets what it would get alone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from backend.engine.request import FinishReason, GenerationRequest, SamplingParams
from tests.backend.engine.fake import FakeRunner, fake_core, fake_options
from tests.backend.engine.results import GREEDY, Results, request, run, solo

PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 9),
    min_tokens=st.sampled_from([0, 0, 3]),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([0, 5]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 1000),
    stop=st.sampled_from([(), ("a",), ("b", "cd")]),
    stop_token_ids=st.sampled_from([(), (5, 6, 7)]),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from([None, 2]),
)
PROMPTS = st.tuples(st.integers(0, 2), st.integers(1, 10)).map(
    lambda drawn: [(drawn[0] + 5 * i) % 63 for i in range(drawn[1])]
)


@st.composite
def requests(draw: st.DrawFn, count: int = 7) -> list[GenerationRequest]:
    drawn = draw(
        st.lists(
            st.tuples(PROMPTS, PARAMS, st.sampled_from([1, 1, 2, 3]), st.sampled_from(["", "s"]), st.floats(0, 1e-3)),
            min_size=1,
            max_size=count,
        )
    )
    return [
        request(f"r{i}", prompt, params, n=n, cache_salt=salt, class_slack=slack, predicted_tokens=float(i))
        for i, (prompt, params, n, salt, slack) in enumerate(drawn)
    ]


@given(
    mix=requests(),
    block_size=st.integers(1, 5),
    spare=st.integers(0, 8),
    chunk=st.integers(1, 9),
    budget=st.integers(4, 12),
    policy=st.sampled_from(["fcfs", "priority", "sjf", "predicted", "prefill-first", "edf", "fair"]),
    mixed=st.booleans(),
    cache=st.booleans(),
    overlap=st.booleans(),
    offload=st.sampled_from([0, 3, 50]),
    data=st.data(),
)
@settings(max_examples=80, deadline=None)
def test_in_any_company_every_request_gets_the_tokens_it_would_get_alone(
    mix: list[GenerationRequest],
    block_size: int,
    spare: int,
    chunk: int,
    budget: int,
    policy: str,
    mixed: bool,
    cache: bool,
    overlap: bool,
    offload: int,
    data: st.DataObject,
) -> None:
    longest = max(len(one.prompt_token_ids) + one.params.max_tokens for one in mix)
    core = fake_core(
        fake_options(
            num_blocks=-(-longest // block_size) + spare,
            block_size=block_size,
            max_num_seqs=4,
            max_num_batched_tokens=budget,
            prefill_chunk=chunk,
            policy=policy,
            mix=mixed,
            prefix_cache=cache,
            offload_blocks=offload,
        )
    )
    results, aborted = Results(), set()
    for one in mix:
        core.add(one)
        for _ in range(data.draw(st.integers(0, 3), label="steps before the next arrival")):
            results.add(core.step())
        if data.draw(st.integers(0, 9), label="abort") == 0:
            victim = data.draw(st.sampled_from(mix), label="victim").id
            aborted.add(victim)
            results.add(core.abort(victim))
            core.check_integrity()
    run(core, results, overlap=overlap)
    for one in mix:
        alone = solo(one)
        for index in range(one.n):
            got, want = results[one.id, index], alone[one.id, index]
            if one.id in aborted:
                assert got.finish is not None
                assert got.token_ids == want.token_ids[: len(got.token_ids)]
                assert want.text.startswith(got.text)
            else:
                assert got == want
                assert results.usage[one.id].completion_tokens == alone.usage[one.id].completion_tokens


class Engine(RuleBasedStateMachine):
    """Arrivals, steps, aborts and faults in any order: the books balance after each, and everybody gets an end."""

    def __init__(self) -> None:
        super().__init__()
        self.core = fake_core(
            fake_options(num_blocks=7, block_size=3, max_num_seqs=4, max_num_batched_tokens=7, policy="priority")
        )
        self.results = Results()
        self.sent: dict[str, GenerationRequest] = {}
        self.disturbed: set[str] = set()

    @rule(prompt=PROMPTS, params=PARAMS, n=st.integers(1, 3), slack=st.floats(0, 1e-3))
    def arrive(self, prompt: list[int], params: SamplingParams, n: int, slack: float) -> None:
        one = request(f"r{len(self.sent)}", prompt, params, n=n, class_slack=slack)
        self.core.add(one)
        self.sent[one.id] = one

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.results.add(self.core.step())

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.sent:
            name = data.draw(st.sampled_from(sorted(self.sent)))
            self.disturbed.add(name)
            self.results.add(self.core.abort(name))

    @rule()
    def fault(self) -> None:
        runner = self.core.runner
        assert isinstance(runner, FakeRunner)
        runner.fail_next = RuntimeError("a fault")
        deltas = self.core.step()
        runner.fail_next = None
        self.disturbed.update(delta.request_id for delta in deltas if delta.finish_reason is FinishReason.ERROR)
        self.results.add(deltas)
        self.arrive([1], GREEDY, 1, 0.0)  # a step that succeeds: three failures in a row would be the end
        self.step(1)

    @invariant()
    def balanced(self) -> None:
        self.core.check_integrity()

    def teardown(self) -> None:
        run(self.core, self.results)
        for name, one in self.sent.items():
            assert all(self.results[name, index].finish is not None for index in range(one.n))
            if name not in self.disturbed:
                alone = solo(one)
                assert all(self.results[name, index] == alone[name, index] for index in range(one.n))


TestEngine = Engine.TestCase
TestEngine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
