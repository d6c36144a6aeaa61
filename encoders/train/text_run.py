"""Training runs on a fixed backbone's features: text encoders, or only an image projection.

Variants of the text encoders by name: ours, and those of the papers' tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from capsearch.encoders.data.labels import held_out
from capsearch.encoders.models import model_folder, registry
from capsearch.encoders.models.hubness import QueryBank
from capsearch.encoders.models.image import ImageNetwork
from capsearch.encoders.text import concepts
from capsearch.encoders.train.corpus import Corpus, LanguageCaptions, captions_of, shown_concepts
from capsearch.encoders.train.distillation import find_teacher, read_sentences, teach
from capsearch.encoders.train.dual_encoder import (
    DualEncoder,
    TrainingOptions,
    TrainingSet,
    freeze_text,
)
from capsearch.encoders.train.export import (
    export_projection,
    export_text,
    finish_card,
    load_projection,
    load_text,
    serve_like,
    text_source,
)
from capsearch.encoders.train.feature_maps import SplitFeatures, train_and_validation
from capsearch.encoders.train.loop import evaluate, interpolate_weights
from capsearch.encoders.train.prune import build_query_bank, calibrate
from capsearch.encoders.train.run import (
    Listener,
    TrainingRun,
    card_of,
    checkpoint_of,
    corpus_of,
    existing_corpus,
    fit,
    requirements_of,
    sentence_encoder,
)
from capsearch.encoders.train.trainer import Trainer, name_anchors
from capsearch.encoders.train.w2vv import TextConfig
from capsearch.engine.errors import TrainingProblem

Variant = Callable[[TrainingOptions, int], TrainingOptions]

# COCO-CN, table X: three inputs, frozen word2vec vectors, predicting the image feature itself.
_PAPER = TextConfig(inputs=("bow", "word2vec", "gru"), gru_width=1024, train_words=False)


def _shared(options: TrainingOptions, features: int) -> TrainingOptions:
    return options


def _w2vv(options: TrainingOptions, features: int) -> TrainingOptions:
    config = replace(_PAPER, pooling="last", train_words=True)
    return replace(
        options,
        config=config,
        loss="mse",
        space="feature",
        dimension=features,
        caption_loss_weight=0.0,
    )


def _with_attention(options: TrainingOptions, features: int) -> TrainingOptions:
    return replace(_w2vv(options, features), config=_PAPER)


def _enhanced(options: TrainingOptions, features: int) -> TrainingOptions:
    return replace(_with_attention(options, features), loss="contrastive")


def _plus_plus(options: TrainingOptions, features: int) -> TrainingOptions:
    config = replace(_PAPER, pooling="mean", train_words=True)
    return replace(options, config=config, loss="triplet", caption_loss_weight=0.0)


VARIANTS: Mapping[str, Variant] = {
    "shared": _shared,
    "w2vv": _w2vv,
    "w2vv-attention": _with_attention,
    "enhanced-w2vv": _enhanced,
    "w2vv++": _plus_plus,
}


def apply_variant(name: str, options: TrainingOptions, features: int) -> TrainingOptions:
    """The options of a named variant for a backbone with `features` features."""
    if name not in VARIANTS:
        raise TrainingProblem(f"no variant called '{name}'; there is {', '.join(VARIANTS)}")
    return VARIANTS[name](options, features)


def train_text(run: TrainingRun, listener: Listener | None = None) -> Path:
    """Text encoders and image projection on a backbone's features; the new model's folder.

    Those of `run.initial` are fine-tuned, on the features of its own backbone; or new ones trained.
    """
    listener = listener or Listener()
    started = _fine_tuned(run, listener) if run.initial else _new(run, listener)
    run, model, backbone, corpus = started.run, started.model, started.backbone, started.corpus
    validation_set = TrainingSet(started.validation.views, corpus.validation)
    train_set = TrainingSet(
        started.train.views, corpus.train, shown=corpus.shown, anchors=started.anchors
    )
    best = fit(run, _trainer(run, model, train_set, validation_set), listener)
    if started.initial:
        best = interpolate_weights(
            model, started.initial, best, lambda: evaluate(model, validation_set)
        )
        listener.epoch(best)
    bank = build_query_bank(model, train_set.captions, run.options.seed)
    card = {
        **started.card,
        **card_of(run, train_set, best),
        "description": f"text encoders for {', '.join(run.languages)} on {backbone.name}",
        **requirements_of(run, backbone.digest),
        **asdict(calibrate(model, bank, validation_set)),
    }
    export_text(model, corpus.vocabularies, bank, run.output, card)
    serve_like(run, run.output, listener)
    checkpoint_of(run.output).unlink(missing_ok=True)
    return run.output


@dataclass(frozen=True, slots=True)
class _Started:
    """A model before training, and what it is trained on."""

    run: TrainingRun
    model: DualEncoder
    backbone: ImageNetwork
    corpus: Corpus
    train: SplitFeatures
    validation: SplitFeatures
    anchors: Mapping[str, LanguageCaptions] | None = None
    initial: Mapping[str, Tensor] = field(default_factory=dict)  # weights; none if they are random
    card: Mapping[str, Any] = field(default_factory=dict)  # where these are from


def _new(run: TrainingRun, listener: Listener) -> _Started:
    """New text encoders, with vocabularies of the training captions."""
    teacher = find_teacher(run)
    run = replace(run, backbone=run.teacher or run.backbone)
    backbone = registry.load_backbone(run.backbone)
    options = apply_variant(run.variant, run.options, backbone.dimension)
    if teacher:
        options = replace(options, space="teacher", dimension=backbone.dimension)
    run = replace(run, options=options)
    more = read_sentences(run.sentences, teacher.reads) if teacher else {}
    train, validation = train_and_validation(run, backbone, listener)
    corpus = corpus_of(run, train.data, validation.data, listener, more)
    if teacher:
        corpus = teach(run, teacher, corpus, train.data, more, listener)
    model = DualEncoder(corpus.vocabularies, corpus.vectors, backbone.dimension, run.options)
    return _Started(run, model, backbone, corpus, train, validation)


def _fine_tuned(run: TrainingRun, listener: Listener) -> _Started:
    """The text encoders, projection, languages and vocabularies of `run.initial`."""
    assert run.initial is not None
    folder = registry.find(run.initial, "text")
    text, vocabularies = load_text(text_source(run.initial))
    served = model_folder.read_card(folder)
    backbone = registry.load_backbone(str(served["backbone"]))
    options = replace(run.options, config=text.config, dimension=text.out.out_features)
    run = replace(run, backbone=backbone.name, languages=tuple(vocabularies), options=options)
    train, validation = train_and_validation(run, backbone, listener)
    corpus = existing_corpus(run, vocabularies, train.data, validation.data, listener)
    model = DualEncoder(vocabularies, {}, backbone.dimension, options, text=text)
    load_projection(folder, model.image)
    known = concepts.all_concepts().keys() - (frozenset() if run.all_concepts else held_out())
    sentences = sentence_encoder(run, listener)
    anchors = name_anchors(text, vocabularies, sentences, sorted(known))
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    card = {"started_from": f"{served['name']}@{served['digest']}"}
    return _Started(run, model, backbone, corpus, train, validation, anchors, initial, card)


def train_projection(run: TrainingRun, text: str, listener: Listener | None = None) -> Path:
    """A projection of another backbone's features into the space of the text model `text`."""
    listener = listener or Listener()
    backbone = registry.load_backbone(run.backbone)
    text = text_source(text)
    network, vocabularies = load_text(text)
    train, validation = train_and_validation(run, backbone, listener)
    run = replace(run, languages=tuple(vocabularies))
    sentences = sentence_encoder(run, listener)
    splits = [captions_of(part.data, vocabularies, sentences) for part in (train, validation)]
    table, (train_rows, validation_rows) = freeze_text(network, splits)
    # The caption vectors are fixed, so a loss between them would train nothing.
    options = replace(run.options, dimension=network.out.out_features, caption_loss_weight=0.0)
    run = replace(run, options=options)
    model = DualEncoder(vocabularies, {}, backbone.dimension, options, text=table)
    validation_set = TrainingSet(validation.views, validation_rows)
    train_set = TrainingSet(train.views, train_rows, shown=shown_concepts(train.data))
    best = fit(run, _trainer(run, model, train_set, validation_set), listener)
    card = {
        **card_of(run, train_set, best),
        "description": f"{backbone.name} in the space of {text}",
        **requirements_of(run, backbone.digest),
    }
    write_projection(model, text, validation_set, run.output, card)
    serve_like(run, run.output, listener)
    checkpoint_of(run.output).unlink(missing_ok=True)
    return run.output


def write_projection(
    model: DualEncoder, text: str, validation: TrainingSet, folder: Path, card: Mapping[str, Any]
) -> None:
    """Write a model folder that has an image projection and uses the encoders of `text`."""
    text_folder = registry.find(text, "text")
    export_projection(model.image, folder)
    full_card = {
        **card,
        "text": registry.reference(text),
        "text_digest": model_folder.read_card(text_folder)["digest"],
        **asdict(calibrate(model, QueryBank.load(text_folder), validation)),
    }
    finish_card(folder, full_card)


def _trainer(
    run: TrainingRun, model: DualEncoder, train: TrainingSet, validation: TrainingSet
) -> Trainer:
    return Trainer(model, train, validation, run.options, checkpoint_of(run.output))
