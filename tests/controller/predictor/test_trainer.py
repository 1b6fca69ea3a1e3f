from __future__ import annotations

import io
import json
import random
import sys

import numpy as np
import pytest

from controller.predictor.export import EnsembleError
from controller.predictor.model import LengthModel, parse_model
from controller.predictor.predictor import FEATURES
from controller.predictor.trainer import Job, Rejected, Trainer, TrainingProcess, pack
from controller.predictor.worker import EXTRA_COLUMNS, train, unpack

from .support import Clock, Never, constant_model, make, serve


def job_of(n: int, limit_s: float = 60.0) -> Job:
    clock = Clock()
    jobs: list[Job] = []

    class Keep(Never):
        def __init__(self, job: Job) -> None:
            super().__init__(job)
            jobs.append(job)

    predictor = make(clock, Keep, min_rows=n)
    serve(predictor, clock, n, rng=random.Random(8))
    clock.now += 1e6
    predictor.tick()
    job = jobs[0]
    return Job(job.names, job.strata, job.before, job.groups, None, limit_s, 0)


def feed(trainer: Trainer, n: int, *, duration_s: float = 1.0) -> None:
    for _ in range(n):
        trainer.observe([0.0] * len(FEATURES), 5, censored=False, model="m", tenant="", at=0.0, duration_s=duration_s)


def started(trainer: Trainer, now: float) -> bool:
    before = trainer.trainings
    trainer.poll(now, lambda model, tenant: (1.0, 1.0), None)
    return trainer.trainings > before


def test_a_training_is_due_after_enough_rows_or_enough_time() -> None:
    for extra, later, due in ((999, 0, False), (1000, 0, True), (49, 601, False), (50, 599, False), (50, 601, True)):

        class Done(Never):
            def result(self) -> LengthModel | Rejected | None:
                return Rejected("no")

        trainer = Trainer(FEATURES, now=0.0, launch=Done)
        feed(trainer, 299)
        assert not started(trainer, 100.0)
        feed(trainer, 1)
        assert started(trainer, 100.0)
        assert not started(trainer, 100.0)  # collects the result
        feed(trainer, extra)
        assert started(trainer, 100.0 + later) is due, (extra, later)


def test_a_busy_pool_spends_a_twentieth_of_a_core_on_trainings_at_most() -> None:
    class Done(Never):
        def result(self) -> LengthModel | Rejected | None:
            return Rejected("no")

    trainer = Trainer(FEATURES, now=0.0, launch=Done)
    feed(trainer, 300)
    assert started(trainer, 100.0)
    assert not started(trainer, 104.0)  # collects the result: it took four seconds
    feed(trainer, 100_000)
    assert not started(trainer, 179.0)
    assert started(trainer, 180.0)


def test_no_training_before_long_answers_had_time_to_finish() -> None:
    trainer = Trainer(FEATURES, now=0.0, launch=Never)
    feed(trainer, 500, duration_s=30.0)
    assert not started(trainer, 59.0)
    assert started(trainer, 60.0)


def test_only_requests_old_enough_to_have_finished_are_trained_on() -> None:
    jobs: list[Job] = []

    class Keep(Never):
        def __init__(self, job: Job) -> None:
            super().__init__(job)
            jobs.append(job)

    trainer = Trainer(FEATURES, now=0.0, launch=Keep, min_rows=10)
    for at in range(100):
        trainer.observe([0.0] * len(FEATURES), 5, censored=False, model="m", tenant="", at=float(at), duration_s=20.0)
    trainer.poll(100.0, lambda model, tenant: (1.0, 1.0), None)
    assert pack(jobs[0], io.BytesIO(), lambda: None) == 80


def test_one_training_at_a_time_and_none_after_close() -> None:
    trainer = Trainer(FEATURES, now=0.0, launch=Never, rows=10, min_rows=10)
    feed(trainer, 10)
    assert started(trainer, 100.0)
    feed(trainer, 100)
    assert not started(trainer, 200.0)
    trainer.close()
    assert started(trainer, 300.0)


@pytest.fixture(scope="module")
def rows() -> tuple[dict[str, object], bytes]:
    file = io.BytesIO()
    pack(job_of(600), file, lambda: None)
    head, raw, _ = unpack(file.getvalue())
    return head, raw


def test_training_tells_long_from_short_within_parity(rows: tuple[dict[str, object], bytes]) -> None:
    head, raw = rows
    model = parse_model(list(train(raw, FEATURES, head["groups"], None)), names=FEATURES)  # type: ignore[arg-type]
    assert model.parity < 1e-9
    assert model.report["loss"] < 0.5 * model.report["loss_before"]
    table = np.frombuffer(raw, dtype="<f8").reshape(-1, len(FEATURES) + len(EXTRA_COLUMNS))
    scale = model.scale("m", "")[0]
    for row in table[:50]:
        x = row[: len(FEATURES)].tolist()
        x[FEATURES.index("log_scale")] = float(np.log1p(scale))
        assert (np.expm1(model.p50(x)) * scale > 80) == (row[len(FEATURES)] > 80)
        assert model.p90(x) >= model.p50(x) - 0.2


def test_a_model_that_is_worse_than_the_one_in_service_does_not_come_out(
    rows: tuple[dict[str, object], bytes],
) -> None:
    head, raw = rows
    table = np.frombuffer(raw, dtype="<f8").reshape(-1, len(FEATURES) + len(EXTRA_COLUMNS)).copy()
    good = list(train(raw, FEATURES, head["groups"], None))  # type: ignore[arg-type]
    service = parse_model(good, names=FEATURES)
    fresh = table[np.argsort(table[:, len(FEATURES) + 2])]
    fresh[:, len(FEATURES) + 2] += 10_000  # the same traffic again, later, but its older part is mislabelled
    fresh[:480, len(FEATURES)] = np.random.default_rng(9).permutation(fresh[:480, len(FEATURES)])
    out = list(train(fresh.tobytes(), FEATURES, head["groups"], service))  # type: ignore[arg-type]
    assert len(out) == 1
    assert "worse" in json.loads(out[0])["rejected"]


def test_parsing_refuses_what_differs_from_its_probes_or_was_made_for_others() -> None:
    zeros = [0.0] * len(FEATURES)
    assert parse_model(constant_model(1.0, 2.0, [(zeros, 1.0, 2.0)]), names=FEATURES).parity == 0.0
    for lines, names in (
        (constant_model(1.0, 2.0, [(zeros, 1.0 + 1e-8, 2.0)]), FEATURES),
        (constant_model(1.0, 2.0, [(zeros, 1.0, float("nan"))]), FEATURES),
        (constant_model(1.0, 2.0), FEATURES[1:]),
        (constant_model(1.0, 2.0)[:0], FEATURES),
        ([*constant_model(1.0, 2.0), "[]"], FEATURES),
        (["{}"], FEATURES),
        (["nonsense"], FEATURES),
    ):
        with pytest.raises(EnsembleError):
            parse_model(lines, names=names)


def outcome(job: Job, command: list[str] | None = None) -> LengthModel | Rejected | None:
    training = TrainingProcess(job, command=command)
    assert training.done.wait(60)
    return training.result()


@pytest.mark.slow
def test_the_real_process_returns_a_model_that_answers_as_scikit_learn() -> None:
    result = outcome(job_of(400))
    assert isinstance(result, LengthModel), result
    assert result.parity < 1e-9


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit(3)", "status 3"),
        ("raise ValueError('no trees here')", "no trees here"),
        ("print('garbage'); print('more')", "EnsembleError"),
        ("print('garbage')", "JSONDecodeError"),
        ('import os; os.close(0); print(\'{"rejected": "because"}\')', "because"),
    ],
)
def test_a_training_that_breaks_is_a_reason_and_not_an_exception(code: str, why: str) -> None:
    result = outcome(job_of(60), [sys.executable, "-c", code])
    assert isinstance(result, Rejected)
    assert why in result.reason


def test_a_training_that_takes_too_long_is_stopped() -> None:
    result = outcome(job_of(60, limit_s=0.3), [sys.executable, "-c", "import threading; threading.Event().wait()"])
    assert isinstance(result, Rejected)
    assert "longer than 0.3 s" in result.reason


def test_a_command_that_is_not_there_is_a_reason() -> None:
    result = outcome(job_of(60), ["/nonexistent/python"])
    assert isinstance(result, Rejected)


def test_cancelling_ends_the_process() -> None:
    training = TrainingProcess(
        job_of(60), command=[sys.executable, "-c", "import threading; threading.Event().wait()"]
    )
    training.cancel()
    assert training.done.wait(30)
    assert isinstance(training.result(), Rejected)
