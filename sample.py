"""Sample from a trained run: python sample.py [--option=value ...]

    python sample.py                              the newest run under out/, with the options it was trained with
    python sample.py --prompt=jo --prompt=mar --temperature=0.7
    python sample.py --run=names --num_samples=50 --only_new
    python sample.py --prompt="Tell me, O muse" --stream
    python sample.py --interactive                a prompt, a continuation, and again
    python sample.py --beams=5                    the likeliest texts instead of samples
    python sample.py --trace                      one text, and how it came about

After a list such as the names, a * marks a text that is not in it.
"""

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat, tee
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch

from config.command_line import parse
from config.settings import Range, SamplingSettings
from data.tokenizers import Tokenizer
from engine import checkpoint
from engine.beams import beam_search
from engine.device import missing_compiler, pick_device, pick_dtype, pick_threads
from engine.errors import UserError, run_program
from engine.files import read_text
from engine.generation import ROWS_AT_ONCE, lay_out
from engine.sampling import Choice
from engine.trace import trace_table, traced
from engine.writing import Piece, Writer, choice_of, encode_prompt, in_order, only_new, page, pieces, texts
from model import GPT

PENALTY = Range(-100, 100)


@dataclass
class SampleSettings(SamplingSettings):
    """All options of sample.py."""

    prompt: list[str] = field(default_factory=list)
    """What a text begins with; given several times, num_samples texts are written for each."""
    prompt_file: str | None = None
    """Prompts from a file, one a line, or with "prompt" in each line of a .jsonl file; - reads lines from standard input."""
    min_new_tokens: Annotated[int, Range(0, 10_000_000)] = 0
    """No text ends before it has so many tokens."""
    stop: list[str] = field(default_factory=list)
    """End a text where this would come; may be given several times."""
    ban: list[str] = field(default_factory=list)
    """A token never to write, by its text; may be given several times."""
    repetition_penalty: Annotated[float, Range(0, 100, above_low=True)] = 1.0
    """Divides the positive logits of tokens in prompt or text, multiplies negative ones: above 1 they come less often."""
    presence_penalty: Annotated[float, PENALTY] = 0.0
    """Taken from the logits of tokens that are in the text so far (the prompt left out)."""
    frequency_penalty: Annotated[float, PENALTY] = 0.0
    """The same, for each time they are there."""
    beams: Annotated[int | None, Range(1, 10_000)] = None
    """Search, with so many beams, for the likeliest texts, and print as many; num_samples and the options of chance do not count."""
    length_penalty: Annotated[float, Range(-10, 10)] = 1.0
    """beams: a text's score is its log-probability / tokens ** length_penalty; 0 favours short texts, 1 compares means per token."""
    context: Literal["exact", "slide"] = "exact"
    """Once the context is full: read its last block_size tokens anew for each, or (rotary positions) go on with what was read,
    which is faster, and another function."""

    stream: bool = False
    """Print a text as it comes."""
    format: Literal["text", "jsonl"] = "text"
    """For people, or a JSON object a line: prompt, text, tokens, log-probability, why it ended."""
    logprobs: bool = False
    """Tell the log-probability of each text in the model; with jsonl that of each token, too."""
    interactive: bool = False
    """Ask for a prompt, continue it, ask again. Ctrl-C stops a text, Ctrl-D ends."""
    trace: bool = False
    """Show how one text comes about: each step's candidates, their probabilities, what was drawn."""
    only_new: bool = False
    """Draw until there are num_samples distinct texts that are not in the training list."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of weights and cache; auto: 16 bits on a GPU, float32 on a CPU."""
    compile: bool = False
    """Compile the step of a token: a slow start, then faster texts."""
    attention: Literal["auto", "fused", "manual"] = "auto"
    """Attention in one kernel, or written out; both give the same numbers. auto: the faster here."""
    threads: Annotated[int | None, Range(1, 1024)] = None
    """Threads on a CPU; None: as many as have enough to do."""
    run: str | None = None
    """Name of a run under out_dir, or its folder; None: the newest."""
    out_dir: str = "out"
    """Folder of the run folders."""


class Trained(NamedTuple):
    """What a run left behind."""

    folder: Path
    model: GPT
    tokenizer: Tokenizer
    opening: list[int]  # what the model reads before a text
    seen: set[str] | None  # the texts of the list it was trained on; None: it was a long text


class Sample(NamedTuple):
    """A finished text, with what it was made of."""

    prompt: str
    text: str
    tokens: list[int]  # of the continuation, as they were drawn
    logprobs: list[float]  # of each, in the model; None where nobody asked
    finish: str | None
    score: float | None = None  # of a beam

    @property
    def whole(self) -> str:
        return self.prompt + self.text


def main(arguments: list[str]) -> None:
    asked = parse(SampleSettings, arguments, description=__doc__)
    check_together(asked)
    folder = checkpoint.find_run(asked.run, asked.out_dir)
    description = checkpoint.read_settings(folder)
    settings = parse(SampleSettings, arguments, checkpoint.sampling_settings(description, SampleSettings))
    run = load_run(folder, description, settings)
    if settings.only_new and run.seen is None:
        raise UserError(f"--only_new: {folder} was trained on a text, not on a list of which a sample could be part; leave it out")
    if settings.context == "slide" and run.model.config.position != "rotary":
        raise UserError(f"--context=slide needs rotary positions, and {folder} has learned ones; --context=exact would do")
    choice = make_choice(settings, run)
    if settings.interactive:
        return converse(run, settings, choice)
    prompts = read_prompts(settings, run.tokenizer)
    for prompt in prompts:
        note_length(run, prompt)
    if settings.trace:
        return show_trace(run, settings, choice, prompts[0])
    rows = [prompt for prompt in prompts for _ in range(settings.num_samples)]
    if settings.stream:
        return show_stream(run, settings, choice, rows)
    drawn = None
    if settings.beams:
        found = chain.from_iterable(searched(run, settings, choice, prompt) for prompt in prompts)
    elif settings.only_new:
        endless = samples(run, settings, choice, repeat(prompts[0]), settings.num_samples)
        new, drawn = only_new(endless, {"", *run.seen}, settings.num_samples, lambda sample: sample.whole)
        found = iter(new)
    else:
        found = samples(run, settings, choice, rows, len(rows))
    show(run, settings, found, drawn)


def check_together(settings: SampleSettings) -> None:
    """Raise UserError for options that do not go together."""
    ways = [name for name in ("interactive", "trace", "stream", "beams", "only_new") if getattr(settings, name)]
    if len(ways) > 1:
        raise UserError(f"--{ways[0]} and --{ways[1]} do not go together; leave one out")
    if settings.format == "jsonl" and ways and ways[0] in ("interactive", "trace", "stream"):
        raise UserError(f"--format=jsonl is for whole texts, not for --{ways[0]}; leave one out")
    if settings.beams and (settings.repetition_penalty, settings.presence_penalty, settings.frequency_penalty) != (1, 0, 0):
        raise UserError("--beams searches for what the model itself finds likeliest; leave out the penalties")
    if settings.interactive and (settings.prompt or settings.prompt_file):
        raise UserError("--interactive asks for prompts; leave out --prompt and --prompt_file")
    if ways and ways[0] in ("trace", "only_new") and len(settings.prompt) + 2 * bool(settings.prompt_file) > 1:
        raise UserError(f"--{ways[0]} is for a single --prompt")
    if "" in settings.stop:
        raise UserError("--stop= is empty, and would end every text at once; leave it out")
    if settings.max_new_tokens is not None and settings.min_new_tokens > settings.max_new_tokens:
        raise UserError(
            f"min_new_tokens={settings.min_new_tokens} is more than max_new_tokens={settings.max_new_tokens}; at most as many would fit"
        )


def load_run(folder: Path, description: dict[str, Any], settings: SampleSettings) -> Trained:
    """The run in this folder, its model ready to write."""
    device = pick_device(settings.device)
    if settings.compile and (missing := missing_compiler(device)):
        raise UserError(f"--compile: {missing}; leave it out")
    dtype = torch.float32 if settings.dtype == "auto" and device.type == "cpu" else pick_dtype(settings.dtype, device, 1, 1)[0]
    model, tokenizer = checkpoint.load_run(folder, device)
    lay_out(model, dtype)
    written_out = settings.compile and device.type == "cpu"  # there the compiler joins the loops of attention to their neighbours
    model.config.attention = settings.attention if settings.attention != "auto" else "manual" if written_out else "fused"
    rows = settings.beams or min(settings.num_samples * max(1, len(settings.prompt)), ROWS_AT_ONCE)
    torch.set_num_threads(settings.threads or pick_threads(10 * 2 * model.num_parameters() * rows))  # one for each 25 MFLOP of a step
    data = description["data"]
    seen = read_seen(folder, data.get("documents", {}).get("train")) if data.get("kind") == "rows" else None
    return Trained(folder, model, tokenizer, data.get("opening", [tokenizer.boundary_id]), seen)


def read_seen(folder: Path, count: int | None) -> set[str]:
    """The training documents of the run in this folder. Raises UserError unless there are `count` of them."""
    path = folder / "seen.txt"
    try:
        seen = set(path.read_text(encoding="utf-8").split("\n")[:-1])
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}; it tells which texts are new: train the run again") from None
    if len(seen) != count:
        raise UserError(f"{path} has {len(seen)} texts, where the run was trained on {count}; train the run again")
    return seen


def make_choice(settings: SampleSettings, run: Trained) -> Choice:
    """How tokens are chosen. Raises UserError for options that leave nothing to choose, and a --ban that is not one token."""
    banned = []
    for text in settings.ban:
        ids = run.tokenizer.encode(text)
        if len(ids) != 1:
            parts = ", ".join(repr(run.tokenizer.decode([i])) for i in ids) or "none"
            raise UserError(f"--ban={text!r} must be one token of this run, and is {len(ids)} ({parts}); --ban may be given for each")
        banned += ids
    try:
        choice = choice_of(settings, run.tokenizer.boundary_id, banned)
        choice.check_vocabulary(run.model.config.vocab_size)
    except ValueError as error:
        raise UserError(str(error)) from None
    return choice


def read_prompts(settings: SampleSettings, tokenizer: Tokenizer) -> list[str]:
    """The prompts, in the form in which the tokenizer sees them; without any, the empty one."""
    prompts = [(f"--prompt={prompt!r}", prompt) for prompt in settings.prompt]
    if settings.prompt_file is not None:
        prompts += prompts_in(settings.prompt_file)
    seen = []
    for place, prompt in prompts or [("", "")]:
        try:
            seen.append(tokenizer.decode(encode_prompt(tokenizer, prompt)))
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
    return seen


def prompts_in(name: str) -> list[tuple[str, str]]:
    """The prompts in a file, each with its place. Raises UserError for a file that cannot be read or has none."""
    try:
        if name == "-":
            content = "".join(read_text(sys.stdin.buffer, "standard input"))
        else:
            with open(name, "rb") as file:
                content = "".join(read_text(file, name))
    except OSError as error:
        raise UserError(f"--prompt_file={name}: {error.strerror}; a file with one prompt a line would do") from None
    lines = content.removesuffix("\n").split("\n") if content else []
    if not lines:
        raise UserError(f"--prompt_file={name} is empty; one prompt a line would do")
    prompts = []
    for number, line in enumerate(lines, start=1):
        place = f"{'standard input' if name == '-' else name}:{number}"
        if name.endswith(".jsonl"):
            try:
                line = json.loads(line)["prompt"]
            except (ValueError, KeyError, TypeError, RecursionError):
                line = None
            if not isinstance(line, str):
                raise UserError(f'{place}: no prompt; an object like {{"prompt": "jo"}} in each line would do')
        prompts.append((place, line))
    return prompts


def note_length(run: Trained, prompt: str) -> None:
    """Say so when a prompt does not fit into the context."""
    length = len(run.opening) + len(run.tokenizer.encode(prompt))
    if length > run.model.config.block_size:
        print(f"note: the prompt has {length} tokens, of which the model sees the last {run.model.config.block_size}", file=sys.stderr)


# ------------------------------------------------------------------------------------------------------------------------
# Writing


def written(
    run: Trained, settings: SampleSettings, choice: Choice, prompts: Iterable[str], rows: int = 1, first_row: int = 0
) -> Iterator[Piece]:
    """Continuations of the prompts, as they come, up to `rows` side by side."""
    return pieces(
        run.model,
        run.tokenizer,
        ([*run.opening, *encode_prompt(run.tokenizer, prompt)] for prompt in prompts),
        settings.max_new_tokens or run.model.config.block_size,
        choice,
        settings.stop,
        first_row,
        seed=settings.seed,
        logprobs=settings.logprobs or settings.format == "jsonl",
        context=settings.context,
        compiled=settings.compile,
        rows_at_once=min(rows, ROWS_AT_ONCE),
    )


def samples(run: Trained, settings: SampleSettings, choice: Choice, prompts: Iterable[str], rows: int) -> Iterator[Sample]:
    """Whole texts, one for each prompt."""
    prompts, again = tee(prompts)
    for prompt, text in zip(again, texts(written(run, settings, choice, prompts, rows)), strict=False):
        logprobs = [token.logprob for token in text.tokens]
        yield Sample(prompt, text.text, [token.id for token in text.tokens], logprobs, text.tokens[-1].finish)


def searched(run: Trained, settings: SampleSettings, choice: Choice, prompt: str) -> Iterator[Sample]:
    """The likeliest continuations of a prompt, best first."""
    ids = [*run.opening, *encode_prompt(run.tokenizer, prompt)]

    def writer(tokens: list[int]) -> tuple[str, Writer]:
        writer = Writer(run.tokenizer, settings.stop, settings.min_new_tokens, ids)
        return "".join(map(writer.add, tokens)), writer

    found = beam_search(
        run.model,
        ids,
        settings.beams,
        settings.max_new_tokens or run.model.config.block_size,
        choice,
        length_penalty=settings.length_penalty,
        ended=(lambda tokens: writer(tokens)[1].ended) if settings.stop else None,
        slide=settings.context == "slide",
    )
    for hypothesis in found:
        tokens = hypothesis.ids[:-1] if hypothesis.finish == "stop_token" else hypothesis.ids
        certain, state = writer(tokens)
        yield Sample(prompt, certain + state.rest(), hypothesis.ids, hypothesis.logprobs, hypothesis.finish, hypothesis.score)


# ------------------------------------------------------------------------------------------------------------------------
# Showing


def show(run: Trained, settings: SampleSettings, found: Iterator[Sample], drawn: int | None) -> None:
    """Print the texts: of a list one a line, with a * before those that are new; others as pages; or as JSON lines.

    drawn: how many texts it took to find these; None: as many.
    """
    shown = []
    for sample in found:
        if settings.format == "jsonl":
            print(json.dumps(described(run, settings, sample), ensure_ascii=False), flush=True)
        elif run.seen is not None:
            print(f"{mark(run, sample.whole)} {sample.whole}{remark(settings, sample)}")
        else:
            print("\n\n---\n\n" * bool(shown) + page(sample.whole) + remark(settings, sample))
        shown.append(sample.whole)
    if run.seen is not None and settings.format == "text":
        summarise(run, shown, drawn or len(shown), "found" if settings.beams else "drawn")


def mark(run: Trained, text: str) -> str:
    """A * for a text that is not in the list the model was trained on; an empty one is nothing new."""
    return " " if not text or text in run.seen else "*"


def remark(settings: SampleSettings, sample: Sample) -> str:
    """What is told behind a text."""
    if sample.score is not None:
        return f"  (score {sample.score:.4f}, log-probability {sum(sample.logprobs):.4f})"
    return f"  (log-probability {sum(sample.logprobs):.4f})" if settings.logprobs else ""


def summarise(run: Trained, shown: list[str], count: int, how: str) -> None:
    """Say how many of these texts of a list, of `count` that were drawn or found, are new."""
    new = len({text for text in shown if mark(run, text) == "*"})
    print(f"\n{run.folder}: {new} of {count} {how} are new and distinct ({new / count:.0%}); * is not in the training list")


def described(run: Trained, settings: SampleSettings, sample: Sample) -> dict[str, Any]:
    """The line of JSON for a text."""
    line = {
        "prompt": sample.prompt,
        "text": sample.text,
        "tokens": sample.tokens,
        "logprob": sum(sample.logprobs),
        "finish": sample.finish,
    }
    if settings.logprobs:
        line["logprobs"] = sample.logprobs
    if sample.score is not None:
        line["score"] = sample.score
    if run.seen is not None:
        line["new"] = mark(run, sample.whole) == "*"
    return line


def show_stream(run: Trained, settings: SampleSettings, choice: Choice, rows: list[str]) -> None:
    """Print the texts as they come, one after the other. Of a list, the * stands behind a text that is new."""
    shown, text = [], ""
    for piece in in_order(written(run, settings, choice, rows, len(rows))):
        more = piece.text if text else rows[len(shown)] + piece.text
        print(more, end="", flush=True)
        text += more
        if piece.token.finish:
            if run.seen is not None:
                print("  *" if mark(run, text) == "*" else "")
            else:
                print("\n\n---\n" if len(shown) < len(rows) - 1 else "")
            shown.append(text)
            text = ""
    if run.seen is not None:
        summarise(run, shown, len(shown), "drawn")


def converse(run: Trained, settings: SampleSettings, choice: Choice) -> None:
    """Ask for a prompt and continue it, until the input ends. Every continuation is another row: asked again, it differs."""
    with contextlib.suppress(ImportError):  # Windows has none
        import readline  # noqa: F401  (input() then has a history, and its line can be edited)
    row = 0
    while True:
        try:
            prompt = input("> ")
        except KeyboardInterrupt:
            print()
            continue
        except EOFError:
            return print()
        try:
            seen = run.tokenizer.decode(encode_prompt(run.tokenizer, prompt))
            print(seen, end="", flush=True)
            for piece in written(run, settings, choice, [seen], first_row=row):
                print(piece.text, end="", flush=True)
        except KeyboardInterrupt:
            pass  # the text ends here
        except UserError as error:
            print(error, end="")
        print("\n")
        row += 1


def show_trace(run: Trained, settings: SampleSettings, choice: Choice, prompt: str) -> None:
    """Print how row 0 comes about; 20 tokens unless max_new_tokens says otherwise."""
    ids = [*run.opening, *encode_prompt(run.tokenizer, prompt)]
    writer = Writer(run.tokenizer, settings.stop, settings.min_new_tokens, ids)
    steps = []
    for step in traced(run.model, ids, settings.max_new_tokens or 20, choice, settings.seed, settings.context == "slide"):
        steps.append(step)
        if step.token != run.tokenizer.boundary_id:
            writer.add(step.token)
        if writer.ended:
            break
    print(trace_table(steps, run.tokenizer))


if __name__ == "__main__":
    run_program(main)
