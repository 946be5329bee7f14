"""Files of devices that say something else are refused by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.core.errors import SettingError
from fedloom.virtual_time.device_files import Spells, availability, capacities, classes

TRACE = "client_id,active,inactive,finish_time\n"


def test_columns_may_stand_in_any_order_beside_others(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("model,inactive,client_id,finish_time,active\nPixel,4,a,10,1\nPixel,9,a,10,6\n")
    assert availability(f"{tmp_path}/f.csv") == [Spells((1.0, 6.0), (4.0, 9.0), 10.0)]


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (
            capacities,
            "computation\n1\n",
            "f.csv needs the columns computation, communication, and has no 'communication'",
        ),
        (capacities, "computation,communication\n", "is a file of devices and has no line beside the first"),
        (capacities, "computation,communication\n1,2\n1,x\n", "communication is a number, got 'x' in line 3 of"),
        (capacities, "computation,communication\n1\n", "communication is a number, got '' in line 2 of"),
        (capacities, "computation,communication\n1,nan\n", "communication is a number, got 'nan' in line 2 of"),
        (
            capacities,
            "computation,communication\n1,0\n",
            "sends more than 0 kbit/s, got computation = 1 and communicati",
        ),
        (capacities, "computation,communication\n-1,1\n", "a device computes in 0 or more milliseconds"),
        (
            classes,
            "name,share,example,down,up\na,1,1,0,1\n",
            "a class of devices has a share, Mbit/s down and up above 0",
        ),
        (classes, "name,share,example,down,up\na,1,1,1,1\na,1,1,1,1\n", "classes of devices have different names"),
        (
            availability,
            f"{TRACE}a,3,2,10\n",
            "spells of a client follow each other, from active to a later inactive, up",
        ),
        (
            availability,
            f"{TRACE}a,3,12,10\n",
            "got active = 3, inactive = 12, finish_time = 10 of client 'a' in line 2",
        ),
        (availability, f"{TRACE}a,3,5,10\na,4,6,10\n", "in line 3 of"),
        (availability, f"{TRACE}a,3,5,10\na,6,7,11\n", "up to its one finish_time"),
    ],
)
def test_what_a_file_says_otherwise_is_refused(tmp_path: Path, read: object, text: str, words: str) -> None:
    (tmp_path / "f.csv").write_text(text)
    with pytest.raises(SettingError) as error:
        read(f"{tmp_path}/f.csv")  # type: ignore[operator]
    assert words in str(error.value)
