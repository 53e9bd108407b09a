INSERT INTO fence_guard (lease, fence) VALUES ($1, $2)
ON CONFLICT (lease) DO UPDATE SET fence = excluded.fence
WHERE fence_guard.fence <= excluded.fence
