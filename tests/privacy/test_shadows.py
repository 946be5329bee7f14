"""Shadow runs, and scores of membership beside SciPy's normal distribution."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from fedloom import Experiment, History
from fedloom.analyses import AnalysedRun
from fedloom.core.errors import SettingError
from fedloom.privacy import shadows
from runs_of_tables import LABEL, described, tables, trained


def test_halves_come_in_pairs() -> None:
    first, other, next_one = (shadows.half(7, 0, number, 3) for number in (0, 1, 2))
    assert first.sum() == 4
    assert (first != other).all()
    assert (first != next_one).any()
    assert (first != shadows.half(7, 1, 0, 3)).any() or (first != shadows.half(7, 0, 0, 4)).any()


def test_confidence_is_the_logit_of_the_true_class() -> None:
    p = np.array([0.9, 0.5, 1e-6])
    assert shadows.confidence(-np.log(p)) == pytest.approx(np.log(p / (1 - p)))
    assert shadows.confidence(np.array([0.0, 1e9])).tolist() == [100, -100]


@pytest.mark.parametrize("few", [True, False])
def test_scores_are_those_of_a_normal_distribution(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's offline score, 1 - P(Z > seen), example by example; of few shadows with one deviation for all."""
    monkeypatch.setattr(shadows, "_FEW", 7 if few else 6)
    draw = np.random.default_rng(0)
    said, inside = draw.normal(size=(6, 5)), np.array([[i % 2 == k % 2 for i in range(5)] for k in range(6)])
    seen = draw.normal(size=5)
    out = [said[~inside[:, i], i] for i in range(5)]
    own = [np.std(values, ddof=1) for values in out]
    shared = np.sqrt(np.mean(np.square(own)))
    expected = [norm.cdf(seen[i], np.mean(out[i]), shared if few else own[i]) for i in range(5)]
    assert norm.cdf(shadows.likelihood_scores(seen, said, inside)) == pytest.approx(expected)


def test_what_membership_does_not_move_is_at_chance() -> None:
    """Members and strangers alike, each with a level of its own."""
    draw = np.random.default_rng(1)
    level = draw.normal(0, 5, 4000)
    inside = np.array([shadows.half(4000, 0, number) for number in range(8)])
    scores = shadows.likelihood_scores(level + draw.normal(size=4000), level + draw.normal(size=(8, 4000)), inside)
    members, strangers = scores[:2000], scores[2000:]
    found = np.mean(members > np.quantile(strangers, 0.99))
    assert found == pytest.approx(0.01, abs=0.008)
    assert np.mean(members[:, None] > strangers) == pytest.approx(0.5, abs=0.03)


def test_levels_of_examples_do_not_hide_members() -> None:
    """Whose confidence is two deviations higher, where levels differ by far more: a threshold sees nothing of it."""
    draw = np.random.default_rng(2)
    level = draw.normal(0, 20, 4000)
    inside = np.array([shadows.half(4000, 0, number) for number in range(16)])
    said = level + draw.normal(size=(16, 4000)) + 2 * inside
    seen = level + draw.normal(size=4000) + 2 * (np.arange(4000) < 2000)
    scores = shadows.likelihood_scores(seen, said, inside)
    found, by_threshold = (np.mean(s[:2000] > np.quantile(s[2000:], 0.99)) for s in (scores, seen))
    assert found > 0.25
    assert by_threshold < 0.05


def test_epsilon_bounds_what_is_found() -> None:
    far = np.array([0.0, 0.01, 0.5, 1.0])
    bound = shadows.most_found(far, np.log(3), 0.01)
    assert bound == pytest.approx([0.01, 0.04, 1 - 0.49 / 3, 1.0])
    assert shadows.most_found(far, 2000.0, 0.0).tolist() == [0.0, 1.0, 1.0, 1.0]


def test_a_shadow_is_the_run_with_half_of_each_clients_examples(tmp_path: Path) -> None:
    job = Experiment.of(described(f"{tables(tmp_path)[0]}?{LABEL}")).job()
    pair = [shadows.shadow(job, number) for number in (0, 1)]
    whole, (one, other) = job.federation.partition, (each.federation.partition for each in pair)
    for k in range(whole.num_clients):
        assert sorted([*one.rows(k), *other.rows(k)]) == sorted(whole.rows(k))
        assert len(one.rows(k)) == -(-len(whole.rows(k)) // 2)
    assert one.clients == whole.clients
    assert len({each.settings.seed for each in (job, *pair)}) == 3
    assert {each.settings.rounds for each in pair} == {2}


@pytest.mark.parametrize("count", [0, 3])
def test_shadows_come_in_pairs(count: int, tmp_path: Path) -> None:
    job = Experiment.of(described(f"{tables(tmp_path)[0]}?{LABEL}")).job()
    with pytest.raises(SettingError, match=f"shadows come in pairs, got {count}: name an even number, such as 16"):
        shadows.trained(job, count, tmp_path, None)


@pytest.mark.slow
def test_shadows_are_runs_that_go_on(tmp_path: Path) -> None:
    """Within the run's folder; those that are there are not trained again, and the next pair is trained beside them."""
    run = AnalysedRun.of(trained(tmp_path, f"{tables(tmp_path)[0]}?{LABEL}"))
    folder, told = run.directory / "analysis/shadows", list[tuple[int, str]]()
    first = shadows.trained(run.job, 2, folder, lambda done, words: told.append((done, words)))
    assert told == [(1, "shadow 1 of 2"), (2, "shadow 1 of 2"), (3, "shadow 2 of 2"), (4, "shadow 2 of 2")]
    logs = [History.read(path).metrics for path, _ in first]
    assert [len(log) for log in logs] == [3, 3]
    assert logs[0] != logs[1]
    times = [(path / "timing.jsonl").read_bytes() for path, _ in first]
    more = shadows.trained(run.job, 4, folder, None)
    assert [(path / "timing.jsonl").read_bytes() for path, _ in more[:2]] == times
    assert sorted(path.name for path in folder.iterdir()) == ["000", "001", "002", "003"]


def test_a_single_example_stays(tmp_path: Path) -> None:
    lines = ["client,readmitted,x", *(f"{'ab'[k > 0]},{('no', 'yes')[k % 2]},{k}" for k in range(9))]
    (tmp_path / "all.csv").write_text("\n".join(lines))
    job = Experiment.of(described(f"{tmp_path}/all.csv?label=readmitted&client=client")).job()
    one, n = job.federation.partition.sizes
    assert one == 1
    for number, half in ((0, -(-n // 2)), (1, n // 2)):
        parts = shadows.shadow(job, number).federation.partition
        assert [len(parts.rows(k)) for k in (0, 1)] == [1, half]
