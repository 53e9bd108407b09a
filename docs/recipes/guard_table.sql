CREATE TABLE fence_guard (
    lease TEXT PRIMARY KEY,
    fence BIGINT NOT NULL
)
