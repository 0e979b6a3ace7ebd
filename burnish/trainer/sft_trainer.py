"""`python3 -m burnish.trainer.sft_trainer key=value …`, in short `burnish sft`: supervised fine-tuning."""

if __name__ == "__main__":
    from burnish.entry import ending

    ending.begin(__name__)


from burnish.config import SFT, Loaded, SFTConfig, finalise_sft, run
from burnish.entry.ending import importing
from burnish.entry.keys import run_program


def main(argv: list[str]) -> None:
    run(argv, SFT, finalise_sft, _train)


def _train(loaded: Loaded[SFTConfig]) -> None:
    with importing():
        from burnish.trainer import supervised
        from burnish.trainer.sft import NextTokens  # torch only once the keys are known to be right
    supervised.run(loaded, NextTokens)


if __name__ == "__main__":
    run_program("sft", main)
