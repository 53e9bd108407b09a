return answer(true)
