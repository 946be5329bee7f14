"""Commands of Flower's `flwr`, several in one process, which takes seconds to start: `python -m` this module."""

from __future__ import annotations

import sys

END = "--end--"  # between two commands, and after what each prints


def main(words: list[str]) -> None:
    """Run commands, which END separates."""
    from flwr.cli.app import app

    command = list[str]()
    for word in [*words, END]:
        if word != END:
            command.append(word)
            continue
        app(command, standalone_mode=False)
        print(END, flush=True)
        command = []


if __name__ == "__main__":
    main(sys.argv[1:])
