"""Model directories made from the golden ones by changing one thing."""
import json
import os
import shutil
import struct

from server import model_dir


def expected(name):
    """The recorded greedy answers of a golden model."""
    with open(os.path.join(model_dir(name), "expected.json")) as f:
        return json.load(f)


def variant(path, base, config=None, remove=(), files=None):
    """A copy of the golden model `base` at path; config updates config.json, files
    replaces or adds whole files (text, bytes, or something for json)."""
    shutil.copytree(model_dir(base), path)
    name = os.path.join(path, "config.json")
    with open(name) as f:
        fields = json.load(f)
    fields.update(config or {})
    for key in remove:
        fields.pop(key, None)
    write(name, fields)
    for file, content in (files or {}).items():
        write(os.path.join(path, file), content)
    return str(path)


def write(name, content):
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else json.dumps(content)).encode()
    with open(name, "wb") as f:
        f.write(content)


def read_safetensors(path):
    """-> (header as a dict, data)"""
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        return json.loads(f.read(size)), f.read()


def write_safetensors(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}"""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def tensors_of(path):
    header, data = read_safetensors(path)
    return {name: (t["dtype"], t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]])
            for name, t in header.items() if name != "__metadata__"}
