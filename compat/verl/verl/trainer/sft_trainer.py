"""`fsdp_sft_trainer` under the name that it has since verl 0.7."""

if __name__ == "__main__":
    from burnish.entry import ending

    ending.begin(__name__)


from verl.trainer.fsdp_sft_trainer import main

if __name__ == "__main__":
    main()
