"""verl's programs: `python -m verl.trainer.main_ppo key=value …` is `burnish ppo key=value …`."""
