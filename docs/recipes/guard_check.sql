SELECT 1 FROM fence_guard
WHERE lease = $1 AND fence = $2
FOR SHARE
