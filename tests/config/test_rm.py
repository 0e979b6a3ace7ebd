"""`burnish rm`: its keys, what is required, what is filled in and what is refused."""

import pytest

from burnish.config import RMConfig, finalise_rm, load_rm
from burnish.config.checks import check_files
from burnish.config.key import keys_of
from burnish.config.supervised import SFTConfig
from burnish.errors import DataError
from tests.config.conftest import refused
from tests.config.test_checks import Facts

PAIR = ("chosen", "rejected")


def finish(*overrides):
    loaded = load_rm(["data.train_files=pairs.parquet", "model.path=some/model", *overrides])
    notices = finalise_rm(loaded.config, loaded.explicit)
    return loaded.config, [*loaded.notices, *notices]


def test_defaults_other_spellings_and_required_keys():
    config, notices = finish()
    assert config.data.train_files == ["pairs.parquet"] and config.data.val_files == []
    assert config.data.margin_key is None and config.data.truncation == "left"
    assert config.trainer.default_local_dir == "outputs/burnish/rm" and notices == []
    config, notices = finish("data.micro_batch_size=4", "optim.clip_grad=0.5", "trainer.run_name=mine")
    assert (config.data.micro_batch_size_per_gpu, config.optim.grad_clip) == (4, 0.5)
    assert config.trainer.experiment_name == "mine" and len(notices) == 3
    config, _ = finish("data.apply_chat_template_kwargs.chat_template=x")
    assert config.data.apply_chat_template_kwargs == {"chat_template": "x"}
    said = "data.train_files and model.path must be set, for example data.train_files="
    refused(said, finalise_rm, RMConfig(), frozenset())


def test_its_keys_are_those_of_sft_but_for_what_a_row_is():
    ours, theirs = set(keys_of(RMConfig)), set(keys_of(SFTConfig))
    assert ours - theirs == {"data.chosen_key", "data.rejected_key", "data.margin_key"}
    assert theirs - ours == {"data.messages_key", "data.response_key", "data.packing"}
    for name, known in keys_of(RMConfig).items():
        if name.startswith(("model.", "optim.")):
            assert known == keys_of(SFTConfig)[name]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.apply_chat_template_kwargs.a=false", "_kwargs.a: a reward model is prompted with the template"),
        ("optim.betas=[0.9]", "optim.betas"),
        ("trainer.save_freq=0", "trainer.save_freq=0: every 0 steps is never"),
    ],
)
def test_mistakes(override, message):
    refused(message, finish, override)


def test_the_columns_of_the_files():
    config, _ = finish("data.val_files=val.parquet")
    assert check_files(config, lambda _: Facts(columns=PAIR)) == 10, "conversations hold their prompt"
    said = r"pairs.parquet: no column 'rejected' \(data.rejected_key\); its columns are"
    refused(said, check_files, config, lambda _: Facts(columns=("chosen",)), error=DataError)
    config, _ = finish("data.margin_key=extra_info.gap")
    assert check_files(config, lambda _: Facts(columns=(*PAIR, "extra_info"))) == 10
    said = r"no column 'extra_info.gap' \(data.margin_key\)"
    refused(said, check_files, config, lambda _: Facts(columns=PAIR), error=DataError)
