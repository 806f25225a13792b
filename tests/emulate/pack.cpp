// kernels/pack.cu on the host: matrices come in on stdin, index and records go out on stdout.
#include "cuda.hpp"

#include "../../kernels/pack.cu"

static bool read(void* to, size_t bytes) { return fread(to, 1, bytes, stdin) == bytes; }
static void write(const void* from, size_t bytes) { fwrite(from, 1, bytes, stdout); }

int main() {
    uint32_t size[2];
    while (read(size, sizeof size)) {
        const uint32_t rows = size[0], cols = size[1];
        std::vector<uint4> words((2ull * rows * cols + 15) / 16);
        if (!read(words.data(), 2ull * rows * cols)) return 1;
        PackArgs a = {};
        a.rows_in = (const uint16_t*)words.data();
        a.rows = rows, a.cols = cols, a.tiles = (cols + 63) / 64, a.records = (a.tiles + 3) / 4;
        a.count = (rows + 15) / 16 * a.records;
        // Memory that a GPU hands out holds anything; a little beyond the end shows who writes there.
        const uint4 anything = make_uint4(0xeeeeeeee, 0xeeeeeeee, 0xeeeeeeee, 0xeeeeeeee);
        std::vector<uint4> plans(a.count * sizeof(PackPlan) / 16, anything), index(a.count / 4 + 2, anything);
        uint32_t largest = 0xeeeeeeee;
        a.plans = (PackPlan*)plans.data(), a.index = (uint32_t*)index.data(), a.totals = &largest;
        launch(snug_pack_plan, a.count, PACK_THREADS, a);
        launch(snug_pack_scan, 1, SCAN_THREADS, a);
        const uint32_t units = a.index[a.count];
        std::vector<uint4> records(units + 16, anything);
        a.data = (uint8_t*)records.data();
        launch(snug_pack_write, a.count, PACK_THREADS, a);
        for (uint32_t k = 0; k < 16; k++)
            if (records[units + k].x != anything.x || records[units + k].w != anything.w) return 2;
        const uint32_t head[3] = {largest, a.count + 1, units};
        write(head, sizeof head);
        write(a.index, 4ull * (a.count + 1));
        write(records.data(), 16ull * units);
    }
}
