//! What a caller may get wrong is an error, never a panic; and the numbers a backend gives about itself.

use snug::backend::cpu::Cpu;
use snug::backend::{Backend, Weight, Weights};
use snug::codec::{Format, Shape};
use snug::error::Kind;
use snug::model::kv::KvFormat;
use snug::model::memory::MemoryPlan;
use snug::model::op::{Buf, Input, Op, Rows, Sampling, Step, WeightId};

use super::bits::configs;
use crate::util::{Model, logits};

fn step(tokens: &[u32], pos: u32, rows: Rows, sample: bool) -> Step<'_> {
    Step { input: Input::Tokens(tokens), pos, rows, sample }
}

#[test]
fn impossible_steps_are_refused_and_change_nothing() {
    let model = Model::random(&configs()[0].1.to_string(), 1, Format::Bf16);
    let program = model.program.clone();
    let mut cpu = model.cpu(20);
    let before = logits(&mut cpu, &program, &[1, 2, 3], 0, 3);
    let last = Step { input: Input::Last, pos: 3, rows: Rows::Last, sample: false };
    let many = vec![1; cpu.max_step() as usize + 1];
    let cases = [
        ("more than the context", step(&[1; 18], 3, Rows::None, false), Kind::ContextOverflow),
        (
            "a position at the end of u32",
            step(&[1], u32::MAX, Rows::None, false),
            Kind::ContextOverflow,
        ),
        ("no tokens", step(&[], 3, Rows::Last, false), Kind::Failure),
        ("a token outside the vocabulary", step(&[131], 3, Rows::Last, false), Kind::Failure),
        ("a gap in the cache", step(&[1], 5, Rows::Last, false), Kind::Failure),
        ("a choice without logits", step(&[1], 3, Rows::None, true), Kind::Failure),
        ("nothing chosen yet", last, Kind::Failure),
    ];
    for (name, step, kind) in cases {
        let e = cpu.run(&program, &step).expect_err(name);
        assert_eq!(e.kind, kind, "{name}: {e}");
    }
    let mut long = model.cpu(4096);
    let e = long.run(&program, &step(&many, 0, Rows::None, false));
    assert!(many.len() > long.max_step() as usize || e.is_ok());
    assert!(cpu.token().is_err(), "no token is waiting");
    assert!(cpu.read(Buf::Logits, &mut vec![0.0; 1 << 20]).is_err());
    assert!(cpu.write(Buf::Residual, &vec![0.0; 1 << 20]).is_err());
    let bad = Op::Proj { w: proj(&model), from: Buf::Logits };
    assert!(cpu.exec(&bad, &step(&[1], 3, Rows::None, false)).is_err());
    let again = logits(&mut cpu, &program, &[1, 2, 3], 0, 3);
    assert_eq!(before, again);
    // The context may be filled to the last token.
    logits(&mut cpu, &program, &[1; 17], 3, 17);
}

fn proj(model: &Model) -> snug::model::op::Linear {
    let w = model.id("model.layers.0.mlp.down_proj.weight");
    snug::model::op::Linear { w, bias: None }
}

#[test]
fn weights_of_another_shape_are_refused_by_name() {
    struct Wrong(std::sync::Arc<Model>);
    impl Weights for Wrong {
        fn weight(&self, id: WeightId) -> Weight<'_> {
            let mut weight = self.0.weight(id);
            if id.0 == 3 {
                weight.shape = Shape { rows: 1, cols: weight.shape.cols };
            }
            weight
        }
    }
    let model = Model::random(&configs()[0].1.to_string(), 1, Format::Bf16);
    let program = model.program.clone();
    let named = program.weights[3].name.clone();
    let Err(e) = Cpu::new(program, std::sync::Arc::new(Wrong(model)), 8, Some(1)) else {
        panic!("a weight of one row was taken");
    };
    assert_eq!(e.kind, Kind::BadFile);
    assert!(e.why.contains(&named), "{e}");
}

#[test]
fn impossible_sampling_is_refused_by_name() {
    let model = Model::random(&configs()[0].1.to_string(), 1, Format::Bf16);
    let mut cpu = model.cpu(8);
    let d = Sampling::default;
    let cases = [
        ("temperature", Sampling { temperature: -1.0, ..d() }),
        ("temperature", Sampling { temperature: f32::NAN, ..d() }),
        ("temperature", Sampling { temperature: f32::INFINITY, ..d() }),
        ("top_p", Sampling { top_p: 1.5, ..d() }),
        ("top_p", Sampling { top_p: f32::NAN, ..d() }),
        ("min_p", Sampling { min_p: -0.1, ..d() }),
        ("repeat_penalty", Sampling { repeat_penalty: 0.0, ..d() }),
        ("presence_penalty", Sampling { presence_penalty: f32::NAN, ..d() }),
        ("frequency_penalty", Sampling { frequency_penalty: f32::INFINITY, ..d() }),
        ("token 131", Sampling { logit_bias: vec![(131, 1.0)], ..d() }),
        ("token 5", Sampling { logit_bias: vec![(5, f32::NAN)], ..d() }),
    ];
    for (named, sampling) in cases {
        let e = cpu.set_sampling(&sampling, &[]).expect_err(named);
        assert_eq!(e.kind, Kind::Usage, "{e}");
        assert!(e.why.contains(named), "{named}: {e}");
    }
}

/// Planned and held memory for every kind of model, in both formats, at contexts of less than a step to several pages.
#[test]
fn the_ledger_is_what_the_plan_said() {
    for (name, config) in configs() {
        for (format, context) in [
            (Format::Pairlut, 5),
            (Format::Bf16, 129),
            (Format::Pairlut, 600),
            (Format::Bf16, 600),
            (Format::Pairlut, 2100),
        ] {
            let what = format!("{name}, {format:?}, context {context}");
            let model = Model::random(&config.to_string(), 1, format);
            let program = model.program.clone();
            let mut cpu = Cpu::new(program.clone(), model.clone(), context, Some(2)).unwrap();
            let most = cpu.max_step();
            for pos in (0..context).step_by(most as usize) {
                let tokens = vec![1; most.min(context - pos) as usize];
                cpu.run(&program, &step(&tokens, pos, Rows::Last, true)).unwrap();
            }
            let plan =
                MemoryPlan::new(&program, model.stored_bytes(), KvFormat::F32, context, most);
            let ledger = cpu.ledger();
            assert_eq!(ledger.weights, plan.weights, "{what}");
            assert_eq!(ledger.kv_used, plan.kv, "{what}");
            assert!(ledger.kv_reserved >= ledger.kv_used, "{what}");
            let (held, planned) = (ledger.scratch as f64, plan.scratch as f64);
            println!("{what}: {held} bytes for {planned}");
            // Work memory of threads and of attention is not planned; it weighs most in small models.
            let most = 2.0 * planned + 2.0 * 65_536.0;
            assert!((planned..=most).contains(&held), "{what}: {held} bytes for {planned}");
        }
    }
}

#[test]
fn bytes_per_token_count_weights_and_what_windows_show_of_the_cache() {
    let (_, config) = &configs()[3];
    let model = Model::random(&config.to_string(), 1, Format::Pairlut);
    let cpu = model.cpu(64);
    // Two layers, of which the second sees five tokens; keys and values of two heads of 32 in float32.
    let per_token = 2 * 2 * 32 * 4;
    assert_eq!(cpu.bytes_per_token(0), model.stored_bytes() + 2 * per_token);
    assert_eq!(cpu.bytes_per_token(9), model.stored_bytes() + (10 + 5) * per_token);
}
