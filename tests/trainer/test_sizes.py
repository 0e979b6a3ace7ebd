from tests.trainer.sizes import PAGE, PLANS, table


def test_the_table_of_sizes_is_made_by_the_plan():
    assert PLANS.search(PAGE.read_text())[2] == table(), "write it again: python -m tests.trainer.sizes"
