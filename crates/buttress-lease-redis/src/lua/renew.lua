-- ARGV: who, by which token, for how long, whether late is soon enough; and payload and memo, each after whether
-- there is one.
local is_mine = holder == ARGV[1] and fence == ARGV[2]
if not (is_mine and (ARGV[4] == '1' or tonumber(expires) > now)) then
    return answer(false)
end
ttl, renewed, expires = ARGV[3], text(now), text(now + ARGV[3] * 1000)
revision = text(revision + 1)
if ARGV[5] == '1' then
    payload = ARGV[6]
end
redis.call('HSET', lease, 'ttl_ms', ttl, 'renewed_us', renewed, 'expires_us', expires, 'payload', payload or '')
if ARGV[4] == '0' then
    redis.call('PEXPIREAT', lease, text(math.ceil(expires / 1000)))
end
redis.call('HSET', kept, 'revision', revision)
if ARGV[7] == '1' then
    memo = ARGV[8]
    redis.call('HSET', kept, 'memo', memo)
end
return answer(true)
