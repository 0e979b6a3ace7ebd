"""Questions for the search agent: short factual answers, of which several may be right ({"target": [...]}). Rows keep
the `data_source` of their record, so that a mixed file is reported by source."""

from burnish.data.files import Row
from burnish.data.sources import Hub
from burnish.data.tasks.task import FileTask, InputColumn, Options, Record, is_filled, kept, rl_row, text, texts

UNNAMED = "searchR1_qa"  # of the family that the exact-match scorer reads
INSTRUCTION = (
    "Answer the question below. Reason between <think> and </think>, at the start and again each time you have read "
    "something new. Where knowledge is missing, write a query as <search>your query</search>; what is found comes back "
    "between <information> and </information>. Search as often as it helps. When you know the answer, write it in as "
    "few words as possible between <answer> and </answer>, like <answer>Mount Everest</answer>."
)


def row(record: Record, options: Options) -> Row:
    question = text(record, "question").strip()
    answers = texts(record, "golden_answers", "answers", "answer")
    named = text(record, "data_source") if is_filled(record, "data_source") else UNNAMED
    prompt = f"{INSTRUCTION}\n\nQuestion: {question}"
    more = kept(record, "id", "type", "gold_titles")
    return rl_row(options["data_source"] or named, "fact-reasoning", prompt, {"target": answers}, question, **more)


TASK = FileTask(
    about="Questions with short answers. The reward compares the last <answer> with each right answer, ignoring "
    "case, articles and punctuation.",
    hub=Hub("google-research-datasets/nq_open", "nq_open", test="validation"),
    reads=(
        InputColumn(("question",), "the question"),
        InputColumn(("golden_answers", "answers", "answer"), "the right answer, or a list of them"),
        InputColumn(("data_source",), f"the name that picks the scorer; without it {UNNAMED}", required=False),
    ),
    data_source=None,
    row=row,
    example="--train qa_train.jsonl --test qa_dev.jsonl",
)
