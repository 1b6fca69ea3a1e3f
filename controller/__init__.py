"""Numbers in, setpoints out.

SLOs, latency windows, control laws, deadline admission, the length predictor and the simulator. Everything
here is pure: time and randomness are arguments, and nothing does I/O on the request path.
"""
