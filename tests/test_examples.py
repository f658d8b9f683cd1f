"""The examples do what they say."""

from examples import serving


def test_serving_with_a_graph_generates_what_eager_generates():
    answers = []
    for graphed in (False, True):
        batch = serving.requests()
        server = serving.Server(graphed)
        server.serve(batch)
        assert len(server.free) == serving.BLOCKS - 1, "every block is free again"
        answers.append([request.tokens for request in batch])
    assert answers[0] == answers[1]
    assert [len(tokens) for tokens in answers[0]] == [6 + 5 * i for i in range(7)]
