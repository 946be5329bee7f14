"""Seeds and --set, as a person types them."""

from __future__ import annotations

import argparse

import pytest

from fedloom.cli.flags import FLAGS, add_settings
from fedloom.cli.options import experiments, in_flags, seed_list, settings_of_method
from fedloom.core.errors import SettingError


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("0-2", "write --seed 0,1,2"),
        ("7-8", "write --seed 7,8"),
        ("3-1", "write --seed 0,1,2"),
        ("0-99", "write --seed 0,1,2"),
        ("4,1,4", "each seed must be named once, got --seed 4,1,4"),
    ],
)
def test_what_is_no_list_of_seeds_is_refused(text: str, remedy: str) -> None:
    with pytest.raises(SettingError) as refused:
        seed_list(text)
    assert str(refused.value).endswith(remedy)
    assert seed_list("4,1") == [4, 1]


def test_a_setting_goes_to_the_method_that_it_names() -> None:
    texts, both = ["fedntd.beta=2", "local.lr=0.1", "fedavg.buffers=server"], ("fedavg", "fedntd")
    assert settings_of_method(texts, "fedntd", both) == {"fedntd.beta": "2", "local.lr": "0.1"}
    assert settings_of_method(texts, "fedavg", both) == {"fedavg.buffers": "server", "local.lr": "0.1"}
    assert settings_of_method(["beta=2"], "fedntd", ["fedntd"]) == {"fedntd.beta": "2"}
    with pytest.raises(SettingError, match="one of fedavg, fedntd, got 'beta=2'"):
        settings_of_method(["beta=2"], "fedntd", both)
    with pytest.raises(SettingError, match="--set gives beta twice, '2' and '3': leave one out"):
        settings_of_method(["beta=2", "beta=3"], "fedntd", ["fedntd"])


def test_flags_override_the_file_and_have_no_values_of_their_own(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "own.toml"
    file.write_text('algorithm = "fedavg"\n[run]\nrounds = 7\nseed = 3\n', encoding="utf-8")
    parser = argparse.ArgumentParser()
    add_settings(parser)
    args = parser.parse_args(["--settings", str(file), "--rounds", "9"])
    assert {key for key in FLAGS if getattr(args, key) is not None} == {"run.rounds"}
    (found,) = experiments(args, [])
    assert (found.run.rounds, found.run.seed) == (9, 3)
    assert "%" in parser.format_help()  # as it stands there, not as a format
    repeated = "each algorithm must be named once, since its name is that of its results, got mine:A and yours:A"
    with pytest.raises(SettingError, match=repeated):
        experiments(args, ["mine:A", "yours:A"])


@pytest.mark.parametrize(
    ("argv", "text", "said"),
    [
        ("", "cohort_size = 10 is more; set cohort_size <= 8", "--cohort 10 is more; set --cohort <= 8"),
        ("--clients 8", "use data.clients = 10 or shards:5", "use --clients 10 or shards:5"),
        ("--rounds 0", "rounds must be >= 1, got 0", "--rounds must be >= 1, got 0"),
        ("", "rounds must be >= 1, got 0", "rounds must be >= 1, got 0"),
        ("", "data.val_fraction is 0: hold some out with data.val_fraction (--val-fraction 0.2)",
         "--val-fraction is 0: hold some out with --val-fraction 0.2"),
        ("", "hold some out (data.val_fraction, --val-fraction 0.1)", "hold some out (--val-fraction 0.1)"),
        ("--lr 1", "lr must be > 0, batch_size = 3, local.lr = 2", "lr must be > 0, batch_size = 3, --lr 2"),
        ("", "moon.local.lr and 'run.rounds' and --set run.rounds=3 and run.rounds_more", None),
        ("--set local.lr=3", "local.lr = 3 and local.epochs", "local.lr = 3 and --epochs"),
        ("--settings FILE", "cohort_size = 10 and run.rounds", None),
        ("--settings FILE --cohort 10", "cohort_size = 10 and run.rounds", "--cohort 10 and run.rounds"),
    ],
)  # fmt: skip
def test_a_message_about_settings_is_in_words_of_flags(argv: str, text: str, said: str | None) -> None:
    parser = argparse.ArgumentParser()
    add_settings(parser)
    assert in_flags(text, parser.parse_args(argv.split())) == (text if said is None else said)
