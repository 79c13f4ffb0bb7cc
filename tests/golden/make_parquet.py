"""make_parquet.py - rows of every sort that d9d-shard meets in Parquet files, and the same as JSON lines.

    parquet/rows.parquet    what pyarrow writes: row groups of 7, zstd, texts, numbers, nulls, nested columns
    parquet/rows.jsonl      its rows as JSON, by pyarrow and Python's json
    parquet/chats.parquet, chats.jsonl    "messages", as chat datasets on the Hub have them
    parquet/null.parquet, null.jsonl      numbers that are not finite and bytes, which are null
"""
import json
import math
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

OUT = pathlib.Path(__file__).parent / "parquet"


def finite(v):
    if isinstance(v, dict):
        return {k: finite(x) for k, x in v.items()}
    if isinstance(v, list):
        return [finite(x) for x in v]
    return None if isinstance(v, bytes) or (isinstance(v, float) and not math.isfinite(v)) else v


def write(name, rows, group, schema=None):
    table = pa.Table.from_pylist(rows, schema)
    pq.write_table(table, OUT / f"{name}.parquet", row_group_size=group, compression="zstd")
    with open(OUT / f"{name}.jsonl", "w", encoding="utf-8") as out:
        for row in table.to_pylist(maps_as_pydicts="strict"):
            print(json.dumps(finite(row), ensure_ascii=False), file=out)


write("rows", [
    {
        "text": ["short", "twelve bytes", "thirteen byte", "\"quoted\" \\ and\nlines\tof \u00e9\u4e16\U0001f600 \u0001"][i % 4]
        + " and" * (i * i % 41),
        "number": i * 10**12,
        "real": i / 4,
        "flag": i % 2 == 0,
        "missing": None if i % 3 else "here",
        "meta": {"source": "web", "tags": ["a", "b"][: i % 3]},
    }
    for i in range(50)
], 7)
write("chats", [
    {"messages": [{"role": "user", "content": f"What is {i}?"}, {"role": "assistant", "content": "A number. " * (i % 5 + 1)}]}
    for i in range(20)
], 20)
write("null", [
    {"text": f"number {i}", "real": [0.5, math.nan, math.inf, None][i % 4], "li\"st": [[1.0, -math.inf, 2.0], None][i % 2],
     "few": 2.0 ** i if i % 3 else math.nan, "bytes": b"\\x\xff",
     "messages": None if i == 7 else [
         {"role": "user", "content": f"question {i}", "it's \"so\"": [{"image": b"\x00", "at": [math.nan, 1.0][i % 2]}, None]},
         {"role": "assistant", "content": "int a;", "it's \"so\"": None}],
     "maps": {"a": b"\x01", "b": None}}
    for i in range(12)
], 5, pa.schema([("text", pa.string()), ("real", pa.float64()), ("li\"st", pa.list_(pa.float32())), ("few", pa.float32()),
                 ("bytes", pa.binary()),
                 ("messages", pa.list_(pa.struct([
                     ("role", pa.string()), ("content", pa.string()),
                     ("it's \"so\"", pa.list_(pa.struct([("image", pa.binary()), ("at", pa.float64())])))]))),
                 ("maps", pa.map_(pa.string(), pa.binary()))]))
