"""``python -m model.commands``: explore words of commands, and print the findings."""

from __future__ import annotations

import argparse
import gc
import logging
import signal
import time

from model.commands.explore import Explored, every, random_words, run
from model.commands.known import known_as
from model.commands.letters import LETTERS
from model.commands.scopes import SCOPES
from model.commands.world import Time, World


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int, default=0, help="All words up to this length.")
    parser.add_argument("--letters", default="", help="Only these letters, divided by commas.")
    parser.add_argument("--scopes", action="store_true", help="All words of four letters of each scope.")
    parser.add_argument("--kills", action="store_true", help="Kill the first letter of each, everywhere.")
    parser.add_argument("--random", type=int, default=0, help="This number of random words.")
    parser.add_argument("--steps", type=int, default=50, help="The length of random words.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0, help="End after this time, or at SIGTERM.")
    parser.add_argument(
        "--word", default="", help="Only this word, its letters divided by blanks; several by semicolons."
    )
    given = parser.parse_args()
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    end = time.perf_counter() + given.seconds

    def ended() -> bool:
        return bool(stopped) or time.perf_counter() > end

    letters = given.letters.split(",") if given.letters else list(LETTERS)
    explored = Explored()
    logging.getLogger("tidegate").addHandler(logging.NullHandler())
    gc.set_threshold(100_000, 50, 100)  # collections of many small objects take a fifth of the time
    with Time.virtual():
        world = World()
        if given.word:
            for word in given.word.split(";"):
                explored.cannot = ""
                found = run(word.split(), world, explored)
                text = [known_as(word.split(), each) or " ".join(each.split()) for each in found]
                print(f"{word.strip()} -> {'; '.join(text) or explored.cannot or 'holds'}"[:2000], flush=True)
            world.close()
            return
        try:
            for name, scope in SCOPES.items() if given.scopes else ():
                begun, of_scope = time.process_time(), Explored()
                every(world, scope.split(), given.length or 4, of_scope, ended, kills=given.kills)
                state = "not complete" if ended() else "complete"
                spent = f"{time.process_time() - begun:.0f} s of CPU time"
                print(f"{name} ({scope}): {state}: {of_scope} in {spent}", flush=True)
            if given.length and not given.scopes:
                every(world, letters, given.length, explored, ended, kills=given.kills)
            random_words(world, given.random, given.steps, seed=given.seed, explored=explored, ended=ended)
        finally:
            world.close()
            end_of = "not complete" if ended() else "complete"
            print(f"{end_of}: {explored} in {time.process_time():.0f} s of CPU time")


if __name__ == "__main__":
    main()
