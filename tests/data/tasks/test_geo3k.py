from burnish.data.tasks import geo3k, geo3k_tool

OPTIONS = {"data_source": "hiyouga/geometry3k", "text_only": False}
PICTURE = {"bytes": b"\x89PNG", "path": None}
RECORD = {"problem": "<image>Find x.", "answer": "48", "images": [PICTURE]}


def test_pictures_are_kept_with_their_marks():
    row = geo3k.row(RECORD, OPTIONS)
    assert row["images"] == [PICTURE]
    assert row["prompt"][0]["content"] == f"<image>Find x.\n\n{geo3k.INSTRUCTION}"
    assert row["reward_model"]["ground_truth"] == "48"


def test_a_problem_without_marks_gets_one_for_each_picture():
    row = geo3k.row(RECORD | {"problem": "Find x.", "images": ["a.png", "b.png"]}, OPTIONS)
    assert row["prompt"][0]["content"].startswith("<image><image>Find x.")
    assert geo3k.row(RECORD | {"images": "a.png"}, OPTIONS)["images"] == ["a.png"]


def test_text_rows_have_neither_pictures_nor_marks():
    bare = {"problem": "<image>Find x.", "answer": 48}
    for row in (geo3k.row(bare, OPTIONS), geo3k.row(bare | {"images": []}, OPTIONS)):
        assert "images" not in row and row["prompt"][0]["content"].startswith("Find x.")
        assert row["reward_model"]["ground_truth"] == "48"
    row = geo3k.row(RECORD, OPTIONS | {"text_only": True})
    assert "images" not in row and "<image>" not in row["prompt"][0]["content"]


def test_the_tool_row_gives_the_answer_to_the_tool():
    row = geo3k_tool.row(RECORD, OPTIONS)
    assert row["agent_name"] == "tool_agent" and row["images"] == [PICTURE]
    assert row["tools_kwargs"] == {"calc_geo3k_reward": {"create_kwargs": {"ground_truth": "48"}}}
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert "48" not in row["prompt"][0]["content"]
