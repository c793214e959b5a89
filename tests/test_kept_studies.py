"""The studies in `results/studies` can be opened, and say what docs/findings.md says."""

import json
import lzma
from pathlib import Path
from statistics import stdev

import pytest

from lrnas import judge, open_study, read_retraining
from lrnas.study.retrained import COST_WORDS

ROOT = Path(__file__).parents[1]
STUDIES = sorted(file.parent for file in (ROOT / "results" / "studies").glob("*/study.db.xz"))
FINDINGS = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_a_kept_study(folder: Path, tmp_path: Path) -> None:
    (tmp_path / folder.name).mkdir()
    (tmp_path / folder.name / "study.db").write_bytes(lzma.decompress((folder / "study.db.xz").read_bytes()))
    study = open_study(folder.name, studies=tmp_path)
    finals = read_retraining(study, "full")
    kept = json.loads((folder / "retrained.json").read_text(encoding="utf-8"))
    assert {final.identity: list(final.accuracies) for final in finals} == {
        network["identity"]: network["accuracies"] for network in kept["networks"]
    }
    assert [(verdict.point, verdict.kind) for verdict in judge(finals)] == [
        (verdict["point"], verdict["verdict"]) for verdict in kept["verdicts"]
    ]
    baseline = next(final for final in finals if final.point == study.baseline)
    for final in finals:
        name, n = final.point or f"trial {final.trial}", len(final.accuracies)
        share = f"{final.macs / baseline.macs:.2f}"
        accuracy = f"{100 * final.mean:.2f} ± {100 * stdev(final.accuracies):.2f} %"
        if final.latency is None or baseline.latency is None:
            row = f"| {name} | {final.macs:,} | {share} | {final.params:,} | {accuracy} | {n} |"
        else:
            time = f"{final.latency:.3f} ms | {final.latency / baseline.latency:.2f}"
            row = f"| {name} | {time} | {final.macs:,} | {share} | {accuracy} | {n} |"
        assert row in FINDINGS
    for verdict in judge(finals):
        assert verdict.interval is not None
        low, high = (f"{100 * end:+.2f}".replace("-", "−") for end in verdict.interval)
        ((cost, part),) = verdict.shares.items()
        difference = f"{100 * (verdict.difference or 0):+.2f}".replace("-", "−")
        told = f"at {part:.2f} of its {COST_WORDS[cost]}: {difference} points"
        assert told in FINDINGS and f"{low} to {high}" in FINDINGS, verdict.point


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("vgg-deep-cifar10", "paper"), ("nin-deep-cifar10", "paper,epochs=80"), ("googlenet-deep-cifar10", "paper")],
)
def test_networks_trained_with_the_recipe_of_the_paper(name: str, recipe: str, tmp_path: Path) -> None:
    folder = ROOT / "results" / "studies" / name
    (tmp_path / folder.name).mkdir()
    (tmp_path / folder.name / "study.db").write_bytes(lzma.decompress((folder / "study.db.xz").read_bytes()))
    study = open_study(folder.name, studies=tmp_path)
    by_recipe = [read_retraining(study, recipe) for recipe in (recipe, "full")]
    kept = json.loads((folder / "retrained_paper.json").read_text(encoding="utf-8"))
    assert {final.identity: list(final.accuracies) for final in by_recipe[0]} == {
        network["identity"]: network["accuracies"] for network in kept["networks"]
    }
    (dense,) = (final.macs for final in by_recipe[0] if final.point == study.baseline)
    for paper, full in zip(*by_recipe, strict=True):
        assert paper.identity == full.identity
        cells = [f"{100 * final.mean:.2f} ± {100 * stdev(final.accuracies):.2f} %" for final in (paper, full)]
        name = paper.point or f"trial {paper.trial}"
        assert f"| {name} | {paper.macs / dense:.2f} | {' | '.join(cells)} |" in FINDINGS


def test_the_headline_of_the_readme() -> None:
    """Its numbers are those of the kept studies."""
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    vgg, nin, googlenet, fast, vgg11, resnet = (
        json.loads((ROOT / "results" / "studies" / name / "retrained.json").read_text("utf-8"))
        for name in (
            "vgg-deep-cifar10",
            "nin-deep-cifar10",
            "googlenet-deep-cifar10",
            "nin-deep-latency",
            "vgg11-cifar10",
            "resnet18-cifar10",
        )
    )
    networks = vgg["networks"]
    found = min((network for network in networks if network["point"] is None), key=lambda network: network["macs"])
    (dense,) = (network for network in networks if network["point"] == "vgg-gmp")
    told = "**{:.1f} % at a quarter of the MACs, where VGG-11 with global max pooling has {:.1f} %.**"
    assert told.format(100 * found["mean"], 100 * dense["mean"]) in readme
    assert 0.2 < found["macs"] / dense["macs"] <= 0.25
    assert {network["n"] for network in networks} == {8} and "over 8 random seeds" in readme
    beaten = (
        ((vgg, vgg11), 7, "Seven of the paper's eight VGGs"),
        ((nin,), 3, "its three NiNs"),
        ((googlenet,), 3, "its three GoogLeNets"),
        ((resnet,), 1, "timm's ResNet-18"),
    )
    for studies, number, words in beaten:
        verdicts = [verdict for study in studies for verdict in study["verdicts"] if verdict["verdict"] == "dominated"]
        assert len({verdict["point"] for verdict in verdicts if verdict["share"] < 0.6}) == number and words in readme
    assert "are each beaten beyond noise by a network with less than 60 % of its MACs" in readme
    shares = sorted(verdict["shares"]["latency"] for verdict in fast["verdicts"] if verdict["verdict"] == "dominated")
    assert (
        len(shares) == 3 and f"by one with {100 * shares[0]:.0f} to {100 * shares[-1]:.0f} % of their latency" in readme
    )
    drawn = [sum((network["point"] is None) is is_found for network in networks) for is_found in (True, False)]
    assert drawn == [2, 6] and "two networks that lrnas found, and six of the paper's VGGs" in readme
