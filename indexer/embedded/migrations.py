"""The catalog's tables: one migration after another."""

from __future__ import annotations

# Whatever is written about an image makes its words stale.
_STALE_TRIGGERS = "".join(
    f"CREATE TRIGGER words_stale_{table}_{event} AFTER {event} ON {table} "
    f"BEGIN UPDATE images SET words_current = 0 WHERE id = {row}.image_id; END;"
    for table in ("captions", "tags", "files", "metadata")
    for event, row in (("INSERT", "NEW"), ("DELETE", "OLD"))
)
# (name, SQL statements). The schema number is the number of migrations applied. Never change the
# statements of a released migration; append another.
MIGRATIONS: tuple[tuple[str, str], ...] = (
    (
        "first tables",
        """
        CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
        CREATE TABLE roots (path TEXT PRIMARY KEY, indexed_at TEXT NOT NULL) WITHOUT ROWID;
        CREATE TABLE arrays (
            name TEXT PRIMARY KEY, generation INTEGER NOT NULL, dtype TEXT NOT NULL,
            width INTEGER NOT NULL, rows INTEGER NOT NULL
        ) WITHOUT ROWID;
        CREATE TABLE images (
            id TEXT PRIMARY KEY,            -- BLAKE2b-128 of the file's bytes, in hex
            width INTEGER NOT NULL, height INTEGER NOT NULL, size_bytes INTEGER NOT NULL,
            format TEXT NOT NULL, taken_at TEXT,
            slot INTEGER UNIQUE             -- row in features and vectors; NULL: not encoded yet
        ) WITHOUT ROWID;
        CREATE TABLE files (
            path TEXT PRIMARY KEY,
            image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
            mtime_ns INTEGER NOT NULL, size INTEGER NOT NULL,
            sidecars TEXT NOT NULL          -- names, times and sizes of its sidecar files
        ) WITHOUT ROWID;
        CREATE INDEX files_by_image ON files(image_id);
        CREATE TABLE captions (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
            text TEXT NOT NULL, language TEXT NOT NULL, source TEXT NOT NULL,
            origin TEXT NOT NULL,           -- path of the image (sidecar) or captions file, or ''
            encoded INTEGER NOT NULL DEFAULT 0,  -- 1 once the text encoder has read it
            slot INTEGER UNIQUE,            -- row in captions; NULL: not encoded, or no known token
            UNIQUE (image_id, source, origin, text)
        );
        CREATE INDEX captions_to_encode ON captions(id) WHERE encoded = 0;
        CREATE INDEX captions_by_origin ON captions(origin) WHERE origin != '';
        CREATE TABLE tags (
            image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
            label TEXT NOT NULL, language TEXT NOT NULL, confidence REAL NOT NULL,
            source TEXT NOT NULL,
            PRIMARY KEY (image_id, label, language, source)
        ) WITHOUT ROWID;
        CREATE INDEX tags_by_label ON tags(label);
        CREATE TABLE skipped (
            path TEXT PRIMARY KEY, mtime_ns INTEGER NOT NULL, size INTEGER NOT NULL,
            reason TEXT NOT NULL
        ) WITHOUT ROWID;
        """,
    ),
    (
        "words found as words",
        """
        ALTER TABLE images ADD COLUMN number INTEGER;  -- rowid in words
        ALTER TABLE images ADD COLUMN words_current INTEGER NOT NULL DEFAULT 0;
        CREATE TEMP TABLE numbered (id TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID;
        INSERT INTO numbered SELECT id, row_number() OVER (ORDER BY id) FROM images;
        UPDATE images SET number = (SELECT number FROM numbered WHERE numbered.id = images.id);
        DROP TABLE numbered;
        CREATE UNIQUE INDEX images_by_number ON images(number);
        CREATE INDEX images_by_date ON images(taken_at, id);
        CREATE INDEX images_words_stale ON images(number) WHERE words_current = 0;
        CREATE INDEX captions_by_image ON captions(image_id);
        CREATE TABLE metadata (         -- texts that are no captions: camera strings, bylines, ...
            image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
            key TEXT NOT NULL, value TEXT NOT NULL,
            PRIMARY KEY (image_id, key, value)
        ) WITHOUT ROWID;
        -- Tokens are folded already; "ascii" leaves all but ASCII as it is.
        CREATE VIRTUAL TABLE words USING fts5(tokens, tokenize = "ascii");
        CREATE VIRTUAL TABLE words_vocab USING fts5vocab('words', 'row');
        CREATE TRIGGER words_deleted AFTER DELETE ON images
            BEGIN DELETE FROM words WHERE rowid = OLD.number; END;
        """
        + _STALE_TRIGGERS,
    ),
    (
        "images without files, remembered folders and captions files, rebuilding beside",
        """
        ALTER TABLE images ADD COLUMN missing_since TEXT;  -- when its last file was missed
        CREATE INDEX images_missing ON images(missing_since) WHERE missing_since IS NOT NULL;
        DROP INDEX images_by_date;
        CREATE INDEX images_newest ON images(taken_at DESC, id);
        CREATE INDEX tags_by_label_and_image ON tags(label, image_id);
        DROP INDEX tags_by_label;
        CREATE INDEX captions_by_language ON captions(language, image_id);
        CREATE TABLE past_files (           -- where images were before; the latest id was last
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            path TEXT NOT NULL,
            image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
            UNIQUE (path, image_id)
        );
        CREATE INDEX past_files_by_image ON past_files(image_id);
        ALTER TABLE roots ADD COLUMN exclude TEXT NOT NULL DEFAULT '[]';  -- globs, as JSON
        CREATE TABLE mount_points (path TEXT PRIMARY KEY) WITHOUT ROWID;  -- below roots
        CREATE TABLE captions_files (
            path TEXT PRIMARY KEY, mtime_ns INTEGER NOT NULL, size INTEGER NOT NULL
        ) WITHOUT ROWID;
        INSERT INTO captions_files
            SELECT DISTINCT origin, 0, 0 FROM captions WHERE source IN ('csv', 'coco');
        CREATE TABLE facets (
            kind TEXT NOT NULL, value TEXT NOT NULL, count INTEGER NOT NULL,
            PRIMARY KEY (kind, value)
        ) WITHOUT ROWID;
        -- A rebuild: vectors beside the current ones, which serve searches until it is complete.
        CREATE TABLE next_arrays (
            name TEXT PRIMARY KEY, generation INTEGER NOT NULL, dtype TEXT NOT NULL,
            width INTEGER NOT NULL, rows INTEGER NOT NULL
        ) WITHOUT ROWID;
        CREATE TABLE next_images (
            id TEXT PRIMARY KEY REFERENCES images(id) ON DELETE CASCADE, slot INTEGER NOT NULL
        ) WITHOUT ROWID;
        CREATE TABLE next_captions (
            id INTEGER PRIMARY KEY REFERENCES captions(id) ON DELETE CASCADE, slot INTEGER
        );
        CREATE TRIGGER next_caption_stale AFTER UPDATE OF language ON captions
            BEGIN DELETE FROM next_captions WHERE id = NEW.id; END;
        """,
    ),
    (
        "what models write: probabilities, concepts, and what people said about it",
        """
        ALTER TABLE captions ADD COLUMN confidence REAL NOT NULL DEFAULT 1.0;
        ALTER TABLE tags ADD COLUMN concept TEXT NOT NULL DEFAULT '';  -- '': names none
        CREATE INDEX tags_by_concept ON tags(concept, image_id, confidence) WHERE concept != '';
        CREATE TABLE enriched (             -- the models that described an image last, or ''
            image_id TEXT PRIMARY KEY REFERENCES images(id) ON DELETE CASCADE,
            tagger TEXT NOT NULL DEFAULT '', captioner TEXT NOT NULL DEFAULT ''
        ) WITHOUT ROWID;
        CREATE TABLE rejected (             -- generated captions that a person refused
            image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
            text TEXT NOT NULL,
            PRIMARY KEY (image_id, text)
        ) WITHOUT ROWID;
        -- Words of generated captions and tags; people's are in words.
        CREATE VIRTUAL TABLE generated_words USING fts5(tokens, tokenize = "ascii");
        CREATE VIRTUAL TABLE generated_words_vocab USING fts5vocab('generated_words', 'row');
        CREATE TRIGGER generated_words_deleted AFTER DELETE ON images
            BEGIN DELETE FROM generated_words WHERE rowid = OLD.number; END;
        """,
    ),
    (
        "indexes that answer a search without the rows of their tables",
        """
        DROP INDEX captions_by_image;
        CREATE INDEX captions_by_image ON captions(image_id, slot, language, source);
        CREATE INDEX captions_by_slot ON captions(slot, image_id) WHERE slot IS NOT NULL;
        """,
    ),
    ("words with a long vowel mark are folded again", "UPDATE images SET words_current = 0;"),
)
