UPDATE buttress_leases SET fence = $1, holder = NULL, revision = revision + 1
WHERE name = $2 AND fence < $1
