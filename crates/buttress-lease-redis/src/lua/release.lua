-- ARGV: who, by which token, whom to wake; and a memo, after whether there is one.
if not (holder == ARGV[1] and fence == ARGV[2]) then
    return answer(false)
end
revision = text(revision + 1)
redis.call('DEL', lease)
redis.call('HSET', kept, 'revision', revision)
if ARGV[4] == '1' then
    memo = ARGV[5]
    redis.call('HSET', kept, 'memo', memo)
end
holder = false
redis.call('PUBLISH', ARGV[3], '')
return answer(true)
