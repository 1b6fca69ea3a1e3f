"""A Mosec server that gives its input back, doubled, in batches."""

from mosec import Server, Worker


class Twice(Worker):
    """`{"input": x}` in, `{"output": x + x}` out."""

    def forward(self, data):
        """Compute a batch."""
        return [{"output": item["input"] + item["input"]} for item in data]


if __name__ == "__main__":
    server = Server()
    server.append_worker(Twice, num=1, max_batch_size=8, max_wait_time=5)
    server.run()
