//! Speed of the codecs on one core. Bytes are bytes of bf16 (2 a weight) throughout, so that packing, unpacking and
//! checking compare: `cargo bench --bench codec`.

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use rayon::ThreadPool;
use snug::codec::pairlut::{RECORD, View};
use snug::codec::simd::{Level, decode_record_with};
use snug::codec::{Format, Parts, Shape};
use snug::num::f32_to_bf16;
use snug::num::rng::Stream;

const SHAPE: Shape = Shape { rows: 4096, cols: 4096 };
const FORMATS: [&str; 2] = ["bf16", "pairlut.1"];

fn main() {
    divan::main();
}

/// Weights as trained matrices have them: normal, with a deviation of 0.02.
fn weights(shape: Shape) -> Vec<u16> {
    let mut stream = Stream::new(7);
    (0..shape.len()).map(|_| f32_to_bf16(stream.normal() * 0.02)).collect()
}

fn one_thread() -> ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread")
}

fn bytes(shape: Shape) -> BytesCount {
    BytesCount::new(2 * shape.len())
}

struct Encoded {
    format: Format,
    parts: Vec<Vec<u8>>,
}

impl Encoded {
    fn new(id: &str, src: &[u16]) -> Encoded {
        let format = Format::from_id(id).expect("a known format");
        let parts = format.codec().encode(SHAPE, src).expect("normal weights shrink");
        Encoded { format, parts }
    }

    fn parts(&self) -> Parts<'_> {
        Parts(self.parts.iter().map(Vec::as_slice).collect())
    }
}

#[divan::bench(args = FORMATS)]
fn pack(bencher: Bencher<'_, '_>, id: &str) {
    let src = weights(SHAPE);
    let codec = Format::from_id(id).expect("a known format").codec();
    let pool = one_thread();
    bencher.counter(bytes(SHAPE)).bench(|| pool.install(|| codec.encode(SHAPE, black_box(&src))));
}

#[divan::bench(args = FORMATS)]
fn unpack(bencher: Bencher<'_, '_>, id: &str) {
    let src = weights(SHAPE);
    let encoded = Encoded::new(id, &src);
    let mut out = vec![0; src.len()];
    let pool = one_thread();
    bencher.counter(bytes(SHAPE)).bench_local(|| {
        pool.install(|| {
            encoded.format.codec().decode_rows(SHAPE, &encoded.parts(), 0..SHAPE.rows, &mut out);
        });
    });
    assert_eq!(out, src);
}

#[divan::bench]
fn validate(bencher: Bencher<'_, '_>) {
    let encoded = Encoded::new("pairlut.1", &weights(SHAPE));
    let pool = one_thread();
    bencher
        .counter(bytes(SHAPE))
        .bench(|| pool.install(|| encoded.format.codec().validate(SHAPE, &encoded.parts())));
}

/// One embedding row: what a single-row gather costs when its 16 rows have to be decoded.
#[divan::bench(args = FORMATS)]
fn unpack_one_row(bencher: Bencher<'_, '_>, id: &str) {
    let encoded = Encoded::new(id, &weights(SHAPE));
    let mut out = vec![0; SHAPE.cols as usize];
    let mut row = 0;
    bencher.counter(BytesCount::new(2 * SHAPE.cols)).bench_local(|| {
        row = (row + 1237) % SHAPE.rows;
        encoded.format.codec().decode_rows(SHAPE, &encoded.parts(), row..row + 1, &mut out);
    });
}

/// Records that stay in the second-level cache (sixteen of them, 91 KB), decoded into the first.
#[divan::bench(args = Level::available())]
fn decode_records(bencher: Bencher<'_, '_>, level: &Level) {
    const ROUND: usize = 16;
    let encoded = Encoded::new("pairlut.1", &weights(SHAPE));
    let view = View::trusted(SHAPE, &encoded.parts());
    let mut out = [0; RECORD];
    bencher
        .counter(BytesCount::new(2 * RECORD * ROUND))
        .counter(ItemsCount::new(RECORD * ROUND))
        .bench_local(|| {
            for r in 0..ROUND {
                decode_record_with(*level, black_box(view.record(r)), 4, &mut out);
                black_box(&mut out);
            }
        });
}

/// All records of the weight (23 MB), one after the other: from memory, or the last-level cache if it is that large.
#[divan::bench(args = Level::available())]
fn decode_stream(bencher: Bencher<'_, '_>, level: &Level) {
    let encoded = Encoded::new("pairlut.1", &weights(SHAPE));
    let view = View::trusted(SHAPE, &encoded.parts());
    let mut out = [0; RECORD];
    bencher.counter(bytes(SHAPE)).counter(ItemsCount::new(SHAPE.len())).bench_local(|| {
        for r in 0..view.grid.records() as usize {
            decode_record_with(*level, view.record(r), 4, &mut out);
            black_box(&mut out);
        }
    });
}
