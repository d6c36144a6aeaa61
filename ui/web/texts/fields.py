"""The fields that every language of the search page has to fill."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Texts:
    """Every text of the page in one language. {placeholders} are filled with numbers only."""

    tagline: str
    search: str
    placeholder: str
    drop_image: str
    searching_with_image: str
    image_weight: str
    more: str
    recent_searches: str
    clear: str
    # Ranking
    ranking: str
    mode: str
    modes: tuple[str, str, str]  # clm, cm, cl
    mode_help: str
    tuned_weight: str
    weight: str
    default_cutoff: str
    min_score: str
    query_language: str
    automatic: str
    # Filters
    filters: str
    tags: str
    folders: str
    taken_from: str
    taken_until: str
    caption_language: str
    written_by: str
    anything: str
    people: str
    models: str
    reset_filters: str
    # Results
    open_image: str
    newest: str
    hits_on_page: str
    like_this: str
    no_hits: str
    no_hits_advice: str
    show_nearest: str
    unknown_words: str
    nothing_captioned: str
    unreadable: str
    # The large view
    image: str
    previous: str
    next: str
    find_similar: str
    captions: str
    no_captions: str
    by_model: str
    by_hand: str
    accept: str
    correct: str
    reject: str
    save: str
    not_reviewed: str
    size: str
    taken: str
    metadata: str
    files: str
    score: str
    evidence: str
    evidence_image: str
    evidence_caption: str
    evidence_generated: str
    evidence_words: str
    evidence_generated_words: str
    evidence_tag: str
    evidence_prior: str
    similar: str
    duplicates: str
    unknown_image: str
    # The original files
    download_original: str
    show_in_folder: str
    copy_path: str
    original_gone: str
    select_mode: str
    select_image: str
    selected_count: str
    select_shown: str
    clear_selection: str
    export_text: str
    export_csv: str
    export_zip: str
    zip_limit: str
    zip_too_large: str
    # Collections and indexing
    collection: str
    interface_language: str
    library: str
    images_count: str
    add_folder: str
    add_folder_help: str
    add_folder_button: str
    stop: str
    indexing: str
    indexed: str
    stopped: str
    skipped: str
    refresh: str
    not_a_folder: str
    already_indexing: str
    # Access
    secret: str
    secret_needed: str
    wrong_secret: str
    wrong_host: str
    token_needed: str
    # Errors
    no_index: str
    no_index_advice: str
    index_empty: str
    index_problem: str
    bad_upload: str
    bad_query: str
    problem: str
