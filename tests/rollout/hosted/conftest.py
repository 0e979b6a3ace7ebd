"""A program that counts: what it samples is the last token plus the version of its weights. A process of its own stands
for those that compute."""

import textwrap

import pytest

HOST = textwrap.dedent(
    """
    import asyncio, os, subprocess
    from burnish.rollout.hosted.host import EngineHost, run

    class Gone(Exception):
        pass

    class CountingHost(EngineHost):
        dead = (Gone,)

        async def begin(self, arguments):
            self.ends, self.is_dead, self.is_broken = set(), False, False
            return [subprocess.Popen(["sleep", "1000"]).pid]

        async def sign_of_life(self):
            if self.is_dead:
                raise Gone("it was told to die")
            if self.is_broken:
                raise KeyError("a figure")

        async def tokens(self, name, ask, done):
            if ask.seed == 13:
                raise ValueError("seed 13")
            if ask.seed == 17:
                yield [5], [-1.0], "repetition"
                return
            if ask.seed == 19:
                yield [5], [-1.0], "abort"
                return
            last = [*ask.prompt_ids, *done][-1]
            held = []
            for given in range(ask.limit - len(done)):
                await asyncio.sleep(0)
                while ask.seed == 7 and not done and given == 8 and name not in self.ends and not self.is_dead:
                    await asyncio.sleep(0.005)
                if self.is_dead:
                    raise Gone("it was told to die")
                if name in self.ends:
                    yield held, [-1.0] * len(held), "abort"
                    return
                last = (last + self._version) % 100
                held.append(last)
                if ask.streams:
                    yield held, [-1.0], None
                    held = []
            yield held, [-1.0] * len(held), "length"

        async def end_parts(self, names):
            self.ends.update(names)

        async def load(self, files):
            from burnish.rollout.hosted.weights import digest, read_weights  # torch: not every test needs it
            return [{"digests": {n: digest(t) for f in files for n, t in read_weights(f)}, "absent": []}]

        async def forget(self):
            return True

        async def log_probs_of(self, token_ids):
            if token_ids == [66]:
                self.is_dead = True
            if token_ids == [77]:
                self.is_broken = True
            return [-1.0] * (len(token_ids) - 1)

        async def end(self):
            pass

    if __name__ == "__main__":
        run(CountingHost)
    """
)


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("program")
    (folder / "counting_host_of_a_test.py").write_text(HOST)
    return folder
