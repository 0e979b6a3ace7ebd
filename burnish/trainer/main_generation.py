"""`python3 -m burnish.trainer.main_generation key=value …`, in short `burnish generate`: responses to prompts."""

if __name__ == "__main__":
    from burnish.entry import ending

    ending.begin(__name__)


from burnish.config import GENERATION, GenerationConfig, Loaded, finalise_generation, run
from burnish.entry.ending import importing
from burnish.entry.keys import run_program
from burnish.errors import ConfigError
from burnish.literal import print_text


def main(argv: list[str]) -> int:
    return run(argv, GENERATION, finalise_generation, _generate)


def _generate(loaded: Loaded[GenerationConfig]) -> None:
    if loaded.flags.plan:
        raise ConfigError("--plan is about training steps, and burnish generate has none; leave it out")
    from burnish.data.files import locate
    from burnish.models.folder import resolve_path

    locate(loaded.config.data.path)
    resolve_path(loaded.config.model.path)
    with importing():
        from burnish.trainer.generation import generate  # torch only once keys and paths are known to be right
    if done := generate(loaded):
        print_text(done)


if __name__ == "__main__":
    run_program("generate", main)
