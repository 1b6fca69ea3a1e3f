"""A Gradio app with one function."""

import sys

import gradio

if __name__ == "__main__":
    app = gradio.Interface(lambda text: text + text, "text", "text", api_name="twice", flagging_mode="never")
    app.queue().launch(server_name="127.0.0.1", server_port=int(sys.argv[1]), quiet=True)
