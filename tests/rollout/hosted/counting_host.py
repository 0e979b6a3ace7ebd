"""A program that counts: what it samples is the last token plus the version of its weights. A process of its own stands
for those that compute. Imports no torch before it must: most tests wait for its start."""

import asyncio
import subprocess

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
        if ask.seed in (17, 19):
            yield [5], [-1.0], "repetition" if ask.seed == 17 else "abort"
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
        from burnish.rollout.hosted.weights import read_weights

        digests = {}
        assert all(tensor.numel() for _, tensor in read_weights(files, digests))
        return [{"digests": digests, "absent": []}]

    async def forget(self):
        return True

    async def do_log_probs_of(self, token_ids):
        self.is_dead |= token_ids == [66]
        self.is_broken |= token_ids == [77]
        return [-1.0] * (len(token_ids) - 1)

    async def end(self):
        pass


if __name__ == "__main__":
    run(CountingHost)
