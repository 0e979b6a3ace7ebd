"""The engine of the program that counts (`counting_host.py`), also for processes that the tests start."""

import os
import sys
from dataclasses import replace

from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.config.rollout import RolloutConfig
from burnish.errors import RolloutError
from burnish.rollout.hosted.engine import HostedEngine
from burnish.rollout.native.spec import SPEC


class CountingEngine(HostedEngine):
    spec = replace(SPEC, name="counting", label="Counter")
    host = "tests.rollout.hosted.counting_host"

    def _engine_arguments(self, config, folder, model):
        assert [file.name for file in folder.iterdir()] == ["config.json"]
        return {}

    def _process_environment(self, temporary):
        return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

    def _request_arguments(self, request):
        if request.sampling.seed == 23:
            raise RolloutError("seed 23")
        return {}


def own(folder):
    """An engine with weights, and what would be left of it: a group of processes, folders, and the log."""
    module = AutoModelForCausalLM.from_pretrained(folder)
    engine = CountingEngine(module, AutoTokenizer.from_pretrained(folder), RolloutConfig())
    engine.publish([dict(module.named_parameters())], 1)
    places = [str(engine.weights.path), engine._place.name, str(engine.process.log_file)]
    return engine, (engine.process.pid, places)
