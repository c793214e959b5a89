"""The latency table: steps are measured once, stored and shared; latencies and estimates are computed from them."""

import dataclasses
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from lrnas.arch.architecture import Allocation, Architecture
from lrnas.arch.backbone_shapes import Step
from lrnas.errors import LrnasError
from lrnas.models.plan import make_plan
from lrnas.models.summary import read_source
from lrnas.profiling import latency_table as latency
from lrnas.profiling.latency_table import Conditions, Latency, LatencyTable
from lrnas.profiling.timing import find_device
from lrnas.spaces.space import load_space

SPACE = load_space("nin", batch_norm=True)
HERE = Conditions.here(torch.device("cpu"), 1, threads=1)
WHOLE = 0.5
"""Seconds of any whole network, by the clock below."""


def rule(step: Step) -> float:
    return 1e-6 + 2e-12 * step.macs + 1e-10 * float(np.prod(step.output))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace measured times by a formula; returns the list of measured steps."""
    measured: list[str] = []

    def measure(calls: Sequence[Step | float], device: torch.device, **options: object) -> list[float]:
        measured.extend(call.key for call in calls if isinstance(call, Step) and call.key not in measured)
        return [rule(call) if isinstance(call, Step) else call for call in calls]

    monkeypatch.setattr(latency, "layer_call", lambda step, setting: step)
    monkeypatch.setattr(latency, "_clock_call", lambda setting: 0.001)
    monkeypatch.setattr(latency, "network_call", lambda *arguments: WHOLE)
    monkeypatch.setattr(latency, "measure", measure)
    return measured


def network(name: str = "nin-c3-lr") -> Architecture:
    return read_source(name)[1]


def test_a_layer_is_measured_once(tmp_path: Path, clock: list[str]) -> None:
    file = tmp_path / "new" / "latency.db"
    first = Latency(LatencyTable(HERE, file), 32, 10)
    steps = first.steps(network())
    assert first.of(network()) == pytest.approx(1000 * sum(map(rule, steps)))
    assert sorted(clock) == sorted({step.key for step in steps})
    clock.clear()
    again = Latency(LatencyTable(HERE, file), 32, 10)  # as in another process
    assert again.of(network()) == first.of(network()) and not clock
    again.of(network("nin-c3"))
    assert 0 < len(clock) < len(steps)  # only steps that are not in the table yet
    clock.clear()
    other = dataclasses.replace(HERE, batch=8)
    assert Latency(LatencyTable(other, file), 32, 10).of(network()) and len(clock) == len({s.key for s in steps})


def test_times_do_not_depend_on_how_fast_the_cpu_is_at_the_moment(
    tmp_path: Path, clock: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, plain = random.Random(0), latency.measure
    slowness: list[float] = []

    def measure(calls: Sequence[Step | float], device: torch.device, **options: object) -> list[float]:
        slowness.append(chance.uniform(1, 3))
        return [slowness[-1] * seconds for seconds in plain(calls, device, **options)]  # type: ignore[arg-type]

    monkeypatch.setattr(latency, "measure", measure)
    found = Latency(LatencyTable(HERE, tmp_path / "l.db"), 32, 10)
    for name in ("nin", "nin-c3", "nin-c3-lr"):
        expected = 1000 * sum(map(rule, found.steps(network(name))))
        assert found.of(network(name)) == pytest.approx(slowness[0] * expected)  # as fast as at first
    assert found.measure([network()]) == pytest.approx([1000 * slowness[0] * WHOLE])


def test_of_two_passes_the_one_in_which_the_cpu_was_faster_counts(
    tmp_path: Path, clock: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other work slows the layers down in different ways."""
    ratios = iter([(1.0, 1.0), (1.2, 0.8), (2.0, 2.0)])  # of layers, and of the clock layer

    def measure(calls: Sequence[Step | float], device: torch.device, **options: object) -> list[float]:
        layers, own = next(ratios)
        return [layers * rule(call) if isinstance(call, Step) else own * call for call in calls]

    monkeypatch.setattr(latency, "measure", measure)
    table = LatencyTable(HERE, tmp_path / "l.db")
    step = Latency(table, 32, 10).steps(network())[0]
    table.time([])
    assert table.seconds([step]) == pytest.approx([1.2 / 0.8 * rule(step)])


def test_the_first_stored_time_is_kept(tmp_path: Path, clock: list[str]) -> None:
    file = tmp_path / "latency.db"
    tables = [LatencyTable(HERE, file) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: tables[i].store({"a": float(i), f"own {i}": 1.0}), range(8)))
    values = {LatencyTable(HERE, file).number("a", lambda: 9.0)} | {table.number("a", lambda: 9.0) for table in tables}
    assert len(values) == 1
    assert {f"own {i}" for i in range(8)} <= LatencyTable(HERE, file)._known.keys()


def test_estimates_follow_the_measured_steps(tmp_path: Path, clock: list[str]) -> None:
    found = Latency(LatencyTable(HERE, tmp_path / "l.db"), 32, 10)
    some = found.some_networks(SPACE, 40)
    assert some == found.some_networks(SPACE, 40) and len(some) == 40
    assert found.prepare(some, 60) == 40 and found.prepare(some, -1) == 0
    clock.clear()
    new = found.some_networks(SPACE, 20, seed=1)
    guesses = [found.guess(network) for network in new]
    assert len(clock) <= 20  # almost all steps are known
    assert guesses == pytest.approx([found.of(network) for network in new], rel=1e-3)


def test_no_time_is_below_zero(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    features = np.abs(chance.standard_normal((30, 6))) + 0.1
    fit = latency._fit(features, features[:, 0] + 0.3 * chance.random(30))
    assert (fit >= 0).all() and fit[0] > 0.5


def test_the_factor_is_that_of_whole_networks(tmp_path: Path, clock: list[str]) -> None:
    plain = Latency(LatencyTable(HERE, tmp_path / "l.db"), 32, 10)
    found = plain.calibrated([network()])
    assert found.of(network()) == pytest.approx(1000 * WHOLE)
    clock.clear()
    again = Latency(LatencyTable(HERE, tmp_path / "l.db"), 32, 10).calibrated([network()])
    assert again.factor == found.factor and not clock
    assert plain.calibrated([]).factor == 1.0


def test_the_rest_of_a_timm_model_is_one_more_step(tmp_path: Path, clock: list[str]) -> None:
    found = Latency(LatencyTable(HERE, tmp_path / "l.db"), 64, 10)
    plain = Architecture("timm:resnet18")
    assert found.of(plain) == pytest.approx(1000 * WHOLE)
    changed = Architecture.from_json(
        '{"backbone": "timm:resnet18", "layers": {"*": {"form": "composite", "shares": {"kx1": 0.5, "1xk": 0.5}}}}'
    )
    saved = sum(map(rule, found.steps(plain))) - sum(map(rule, found.steps(changed)))
    assert saved > 0 and found.of(changed) == pytest.approx(1000 * (WHOLE - saved))
    assert found.calibrated([plain]).factor == 1.0
    smaller = Architecture(
        "timm:resnet18", {"layer4.0.conv1": Allocation(width=0.5), "layer4.1.conv1": Allocation(width=0)}
    )
    rest = WHOLE - sum(map(rule, found.steps(plain)))
    values = [make_plan(each, 64, 10).cost.num_values for each in (smaller, plain)]
    assert "layer4.1.conv1" not in {step.name for step in found.steps(smaller)}
    expected = sum(map(rule, found.steps(smaller))) + rest * values[0] / values[1]
    assert values[0] < values[1] and found.of(smaller) == pytest.approx(1000 * expected)


def test_real_layers_add_up_to_a_real_network(tmp_path: Path) -> None:
    """The tolerance is wide because the machine may be busy; `lrnas profile --check-table` measures the error."""
    found = Latency(LatencyTable(HERE, tmp_path / "l.db"), 16, 10)
    predicted, (measured,) = found.of(network()), found.measure([network()])
    assert 0.3 < predicted / measured < 3
    assert torch.get_num_threads() > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: find_device("gpu"), "the device must be cpu, cuda or cuda:N; got 'gpu'"),
        (lambda: find_device("mps"), "measured on cpu and cuda"),
        (lambda: find_device("cuda:99"), "GPUs that PyTorch can use; got 'cuda:99'"),
        (lambda: Conditions.here(torch.device("cpu"), 0), "at least one image; got 0"),
        (lambda: Conditions.here(torch.device("cpu"), 1, "int8"), "one of bf16, fp16, fp32; got 'int8'"),
    ],
)
def test_impossible_conditions(make: Callable[[], object], message: str) -> None:
    with pytest.raises(LrnasError, match=message):
        make()


def test_an_error_names_the_file_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LrnasError, match=r"cannot read .*latency.db: .*; choose a folder with \$LRNAS_DATA"):
        LatencyTable(HERE, tmp_path / "file" / "latency.db")
    broken = tmp_path / "latency.db"
    broken.write_bytes(random.Random(0).randbytes(4096))
    with pytest.raises(LrnasError, match="file is not a database"):
        LatencyTable(HERE, broken)


@pytest.mark.gpu
def test_on_a_gpu_layers_add_up_to_the_network(tmp_path: Path) -> None:
    device = torch.device("cuda")
    table = LatencyTable(Conditions.here(device, 32), tmp_path / "l.db", device)
    found = Latency(table, 32, 10).calibrated([network("nin"), network("nin-c3")])
    (measured,) = found.measure([network()])
    assert found.of(network()) == pytest.approx(measured, rel=0.3)
