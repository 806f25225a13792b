"""The bf16 peer on the same card in the same run: cuBLAS through torch, weights cold, graphs of many products.

python3 benches/peer.py        prints microseconds per product for each shape and batch, and a prefill-sized product.
"""
import torch

SHAPES = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)]
torch.manual_seed(0)


def timed(graph, runs):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    best = float("inf")
    for _ in range(5):
        start.record()
        for _ in range(runs):
            graph.replay()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / runs)
    return best


for rows, cols in SHAPES:
    copies = max(2, int(2e9 / (rows * cols * 2)))
    ws = [torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(copies)]
    line = f"cuBLAS bf16 {rows:6} x {cols:5}"
    for n in (1, 8):
        x = torch.randn(n, cols, device="cuda", dtype=torch.bfloat16)
        for w in ws[:2]:
            torch.nn.functional.linear(x, w)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for w in ws:
                torch.nn.functional.linear(x, w)
        line += f"   n {n}: {timed(graph, 3) * 1e3 / copies:7.2f} us"
        del graph
    print(line, flush=True)
    del ws
a = torch.randn(2048, 4096, device="cuda", dtype=torch.bfloat16)
b = torch.randn(28672, 4096, device="cuda", dtype=torch.bfloat16)
for _ in range(3):
    torch.nn.functional.linear(a, b)
torch.cuda.synchronize()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
for _ in range(10):
    torch.nn.functional.linear(a, b)
end.record()
end.synchronize()
ms = start.elapsed_time(end) / 10
print(f"cuBLAS bf16 2048 x 28672 x 4096: {ms:.3f} ms, {2 * 2048 * 28672 * 4096 / ms / 1e9:.0f} TFLOP/s")
