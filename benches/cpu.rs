//! Speed of the CPU backend on random weights in the shape of a small model, for either format: tokens a second, and
//! gigabytes of weights and cache a second, which is what limits decoding.
//!
//! ```text
//! cargo bench --bench cpu                          SmolLM2-135M's shape, one thread per core
//! cargo bench --bench cpu -- 1                     one thread
//! cargo bench --bench cpu -- 2 avx2                two threads, AVX2
//! cargo bench --bench cpu -- 2 avx512 900          decoding after 900 tokens
//! cargo bench --bench cpu -- 2 avx512 0 config.json
//! ```

use std::sync::Arc;
use std::time::Instant;

use snug::backend::Backend;
use snug::backend::cpu::{Cpu, Isa};
use snug::bench::synthetic::{Synthetic, shape};
use snug::codec::Format;
use snug::model::op::{Input, Rows, Sampling, Step};
use snug::model::program::Program;

const ROUNDS: usize = 25;

fn prefill(cpu: &mut Cpu, program: &Program, from: u32, tokens: u32) {
    let chunk = cpu.max_step();
    let end = from + tokens;
    for pos in (from..end).step_by(chunk as usize) {
        let last = end.min(pos + chunk);
        let ids: Vec<u32> = (pos..last).map(|p| p * 7 % program.config.vocab).collect();
        let (rows, sample) = if last == end { (Rows::Last, true) } else { (Rows::None, false) };
        let step = Step { input: Input::Tokens(&ids), pos, rows, sample };
        cpu.run(program, &step).expect("a step");
    }
    cpu.token().expect("a token");
}

/// Seconds a token over `count` tokens.
fn decode(cpu: &mut Cpu, program: &Program, from: u32, count: u32) -> f64 {
    let begin = Instant::now();
    for pos in from..from + count {
        let step = Step { input: Input::Last, pos, rows: Rows::Last, sample: true };
        cpu.run(program, &step).expect("a step");
        cpu.token().expect("a token");
    }
    begin.elapsed().as_secs_f64() / f64::from(count)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let threads = args.first().and_then(|a| a.parse().ok());
    let named = |name: &String| Isa::available().into_iter().find(|isa| isa.name() == name);
    let isa = args.get(1).and_then(named).unwrap_or_else(Isa::best);
    let context: u32 = args.get(2).and_then(|a| a.parse().ok()).unwrap_or(0);
    let config = match args.get(3) {
        Some(path) => std::fs::read_to_string(path).expect("the config"),
        None => shape("smollm2-135m").expect("a shape that has a name").into(),
    };
    let mut models = Vec::new();
    let program = Arc::new(Program::read(&config).expect("a good config"));
    for format in [Format::Bf16, Format::Pairlut] {
        let model = Arc::new(Synthetic::new(&program, format).spread_out());
        let program = program.clone();
        let cpu = Cpu::on(isa, program.clone(), model, 4096, threads).expect("a backend");
        models.push((format, program, cpu));
    }
    let (_, program, cpu) = &models[0];
    println!("{}, {}", cpu.card().name, cpu.card().path);
    println!("{:.1} M weights; the best of {ROUNDS} rounds\n", program.parameters() as f64 / 1e6);
    println!(
        "{:<10} {:>13} {:>8} {:>14} {:>16}",
        "", "decode tok/s", "GB/s", "prefill tok/s", "prefill / decode"
    );
    let mut best = [(f64::INFINITY, f64::INFINITY); 2];
    // Rounds are short and alternate between the formats, so that both meet the same noise.
    for round in 0..ROUNDS {
        for ((_, program, cpu), best) in models.iter_mut().zip(&mut best) {
            let chunk = cpu.max_step();
            if round == 0 {
                cpu.set_sampling(&Sampling::default(), &[]).expect("greedy");
                prefill(cpu, program, 0, context + 1);
            }
            best.0 = best.0.min(decode(cpu, program, context + 1, 4));
            let begin = Instant::now();
            prefill(cpu, program, context + 1, chunk);
            best.1 = best.1.min(begin.elapsed().as_secs_f64() / f64::from(chunk));
        }
    }
    for ((format, _, cpu), (decode, prefill)) in models.iter().zip(best) {
        let rate = cpu.bytes_per_token(context + 2) as f64 / decode / 1e9;
        println!(
            "{:<10} {:>13.1} {:>8.2} {:>14.1} {:>16.1}",
            format.codec().id(),
            1.0 / decode,
            rate,
            1.0 / prefill,
            decode / prefill
        );
    }
    println!("\nlossless decode is {:.2} of bf16 decode", best[0].0 / best[1].0);
}
