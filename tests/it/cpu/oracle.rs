//! Each op against float64. A bound follows every value: how far float32 may be from it, derived from the number of
//! roundings; the test prints how much of it was used.

use snug::backend::Backend;
use snug::backend::cpu::Cpu;
use snug::codec::Format;
use snug::model::config::Activation;
use snug::model::op::{Buf, Input, Linear, Op, Rows, Step, WeightId};
use snug::model::rope::RopeTable;
use snug::num::gamma;
use snug::num::rng::Stream;

use super::bits::{configs, random_tokens};
use crate::util::{Model, normals, read};

/// Half a unit in the last place of float32, relative.
const U: f64 = 5.960_464_477_539_063e-8;
/// Relative error of `num::func::exp`.
const EXP: f64 = 2.4e-7;

/// A value and how far from it float32 may be.
#[derive(Clone, Copy)]
struct Bounded {
    value: f64,
    error: f64,
}

fn exact(values: &[f32]) -> Vec<Bounded> {
    values.iter().map(|v| Bounded { value: f64::from(*v), error: 0.0 }).collect()
}

struct Oracle<'a> {
    model: &'a Model,
}

impl Oracle<'_> {
    fn rms_norm(&self, x: &[Bounded], weight: WeightId) -> Vec<Bounded> {
        let eps = f64::from(self.model.program.config.norm_eps);
        let square: f64 = x.iter().map(|x| x.value * x.value).sum();
        let r = 1.0 / (square / x.len() as f64 + eps).sqrt();
        // r changes by at most the relative change of the vector's length.
        let moved = x.iter().map(|x| x.error * x.error).sum::<f64>().sqrt() / square.sqrt();
        let of = |(i, x): (usize, &Bounded)| {
            let w = self.model.at(weight, 0, i);
            let value = x.value * r * w;
            let error = (x.error * r * w).abs() + value.abs() * (moved + 3.0 * U);
            Bounded { value, error }
        };
        x.iter().enumerate().map(of).collect()
    }

    fn linear(&self, l: Linear, x: &[Bounded]) -> Vec<Bounded> {
        let rows = self.model.program.weight(l.w).shape.rows as usize;
        // Two products a tile in each partial sum, five levels of the tree, and the bias.
        let depth = gamma(2 * x.len().div_ceil(64) + 6);
        let row = |r: usize| {
            let bias = l.bias.map_or(0.0, |b| self.model.at(b, 0, r));
            let (mut value, mut size, mut error) = (bias, bias.abs(), 0.0);
            for (c, x) in x.iter().enumerate() {
                let w = self.model.at(l.w, r, c);
                value += w * x.value;
                size += (w * x.value).abs();
                error += w.abs() * x.error;
            }
            Bounded { value, error: error + depth * (size + error) }
        };
        (0..rows).map(row).collect()
    }

    fn heads(&self, x: &mut [Bounded], norm: Option<WeightId>, rope: &RopeTable, pos: u32) {
        let (cos, sin) = rope.row(pos);
        let half = cos.len();
        for head in x.chunks_mut(self.model.program.config.head_dim as usize) {
            if let Some(norm) = norm {
                head.copy_from_slice(&self.rms_norm(head, norm));
            }
            for i in 0..half {
                let (c, s) = (f64::from(cos[i]), f64::from(sin[i]));
                let (a, b) = (head[i], head[i + half]);
                let turn = |a: Bounded, b: Bounded, s: f64| {
                    let size = (a.value * c).abs() + (b.value * s).abs();
                    let error = a.error * c.abs() + b.error * s.abs();
                    Bounded { value: a.value * c + b.value * s, error: error + 3.0 * U * size }
                };
                (head[i], head[i + half]) = (turn(a, b, -s), turn(b, a, s));
            }
        }
    }

    /// One query head over the keys and values it sees.
    fn attend(&self, q: &[f32], keys: &[&[Bounded]], values: &[&[Bounded]]) -> Vec<Bounded> {
        let scale = f64::from(self.model.program.config.attn_scale);
        let depth = gamma(q.len() + 1);
        let (mut scores, mut moved) = (Vec::new(), 0f64);
        for key in keys {
            let (mut s, mut size, mut error) = (0.0, 0.0, 0.0);
            for (q, k) in q.iter().zip(*key) {
                s += f64::from(*q) * k.value;
                size += (f64::from(*q) * k.value).abs();
                error += f64::from(q.abs()) * k.error;
            }
            scores.push(s * scale);
            moved = moved.max((error + depth * (size + error)) * scale);
        }
        let most = scores.iter().copied().fold(f64::MIN, f64::max);
        let spread = most - scores.iter().copied().fold(f64::MAX, f64::min);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let sum: f64 = weights.iter().sum();
        // Weights above and below the line each move by the scores' error, the difference to the largest (rounded),
        // the exponential, and the sums.
        let relative =
            (2.0 * (moved + U * spread)).exp_m1() + 2.0 * EXP + gamma(2 * keys.len() + 24);
        let of = |d: usize| {
            let (mut value, mut size, mut error) = (0.0, 0.0, 0.0);
            for (w, v) in weights.iter().zip(values) {
                value += w / sum * v[d].value;
                size += w / sum * v[d].value.abs();
                error += w / sum * v[d].error;
            }
            Bounded { value, error: error + relative * (size + error) }
        };
        (0..q.len()).map(of).collect()
    }

    fn gate(&self, gate: Bounded, up: Bounded) -> Bounded {
        let (x, steepest) = (gate.value, 1.13);
        let (act, own) = match self.model.program.config.activation {
            Activation::Silu => {
                let act = x / (1.0 + (-x).exp());
                (act, act.abs() * (EXP + 3.0 * U))
            }
            Activation::GeluTanh => {
                let inner = 0.797_884_560_802_865_4 * (x + 0.044_715 * x * x * x);
                (0.5 * x * (1.0 + inner.tanh()), 1e-6 * x.abs())
            }
        };
        let act_error = steepest * gate.error + own;
        let value = act * up.value;
        let error = act_error * up.value.abs() + (act.abs() + act_error) * up.error;
        Bounded { value, error: error + U * value.abs() }
    }
}

/// The largest share of its bound that an error of an op took.
#[track_caller]
fn check(what: &str, got: &[f32], want: &[Bounded], worst: &mut f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let share = (f64::from(*got) - want.value).abs() / want.error;
        assert!(share <= 1.0, "{what}, value {i}: {got} for {} ± {:e}", want.value, want.error);
        *worst = worst.max(share);
    }
}

/// Everything before position `POS` is context; the step under test has N tokens.
const POS: usize = 6;
const N: usize = 5;

#[test]
fn every_op_is_within_its_bound_of_float64() {
    let mut worst = [0f64; 5];
    for (name, config) in configs() {
        let model = Model::random(&config.to_string(), 31, Format::Pairlut);
        let mut cpu = model.cpu(64);
        let program = model.program.clone();
        let tokens = random_tokens(1, N, &program);
        let step =
            Step { input: Input::Tokens(&tokens), pos: POS as u32, rows: Rows::All, sample: false };
        let before = random_tokens(2, POS, &program);
        let context =
            Step { input: Input::Tokens(&before), pos: 0, rows: Rows::None, sample: false };
        let mut stream = Stream::new(5);
        for op in &program.ops {
            let i = match op {
                Op::Embed { .. } | Op::Sample => continue,
                Op::Qkv { .. } => 0,
                Op::Attend { .. } => 1,
                Op::Proj { .. } => 2,
                Op::GateUp { .. } => 3,
                Op::Head { .. } => 4,
            };
            let stage = Stage { model: &model, cpu: &mut cpu, step: &step, context: &context };
            stage.check(op, &mut stream, name, &mut worst[i]);
        }
    }
    for (op, worst) in ["qkv", "attend", "proj", "gate_up", "head"].iter().zip(worst) {
        println!("{op}: {worst:.3} of the bound");
        assert!(worst > 1e-3, "{op}: the bound is not worth its name, {worst:e} of it was used");
    }
}

struct Stage<'a> {
    model: &'a Model,
    cpu: &'a mut Cpu,
    step: &'a Step<'a>,
    context: &'a Step<'a>,
}

impl Stage<'_> {
    /// Fills a buffer for the step with random values and returns them, one row a token.
    fn fill(&mut self, buf: Buf, width: usize, stream: &mut Stream) -> Vec<Vec<f32>> {
        let values = normals(stream, N * width);
        self.cpu.write(buf, &values).unwrap();
        values.chunks(width).map(<[f32]>::to_vec).collect()
    }

    fn check(mut self, op: &Op, stream: &mut Stream, name: &str, worst: &mut f64) {
        let c = self.model.program.config.clone();
        let oracle = Oracle { model: self.model };
        let hidden = c.hidden as usize;
        let what = format!("{name}, {op:?}");
        let (buf, want): (Buf, Vec<Bounded>) = match *op {
            Op::Qkv { .. } => return self.check_attention(op, stream, &what, worst, false),
            Op::Attend { layer } => {
                let qkv = |op: &&Op| matches!(op, Op::Qkv { layer: l, .. } if *l == layer);
                let op = self.model.program.ops.iter().find(qkv).unwrap().clone();
                return self.check_attention(&op, stream, &what, worst, true);
            }
            Op::Proj { w, from } => {
                let width = self.model.program.weight(w.w).shape.cols as usize;
                let x = self.fill(from, width, stream);
                let residual = self.fill(Buf::Residual, hidden, stream);
                let add = |(x, r): (&Vec<f32>, &Vec<f32>)| -> Vec<Bounded> {
                    let sums = oracle.linear(w, &exact(x));
                    let one = |(y, r): (&Bounded, &f32)| {
                        let value = y.value + f64::from(*r);
                        Bounded { value, error: y.error + U * (value.abs() + y.error) }
                    };
                    sums.iter().zip(r).map(one).collect()
                };
                (Buf::Residual, x.iter().zip(&residual).flat_map(add).collect())
            }
            Op::GateUp { norm, gate, up } => {
                let x = self.fill(Buf::Residual, hidden, stream);
                let token = |x: &Vec<f32>| -> Vec<Bounded> {
                    let x = oracle.rms_norm(&exact(x), norm);
                    let both = oracle.linear(gate, &x).into_iter().zip(oracle.linear(up, &x));
                    both.map(|(g, u)| oracle.gate(g, u)).collect()
                };
                (Buf::Hidden, x.iter().flat_map(token).collect())
            }
            Op::Head { norm, w } => {
                let x = self.fill(Buf::Residual, hidden, stream);
                let head = Linear { w, bias: None };
                let token = |x: &Vec<f32>| oracle.linear(head, &oracle.rms_norm(&exact(x), norm));
                (Buf::Logits, x.iter().flat_map(token).collect())
            }
            Op::Embed { .. } | Op::Sample => return,
        };
        self.cpu.exec(op, self.step).unwrap();
        check(&what, &read(self.cpu, buf, want.len()), &want, worst);
    }

    /// Runs `Qkv` for the context and for the step, and checks the queries or what `Attend` makes of them.
    fn check_attention(
        mut self,
        op: &Op,
        stream: &mut Stream,
        what: &str,
        worst: &mut f64,
        attend: bool,
    ) {
        let Op::Qkv { layer, norm, q, k, v, q_norm, k_norm } = *op else { return };
        let c = self.model.program.config.clone();
        let oracle = Oracle { model: self.model };
        let (hidden, dim) = (c.hidden as usize, c.head_dim as usize);
        let width = c.heads as usize * dim;
        let mut rope = RopeTable::new(&c.rope);
        rope.grow((POS + N) as u32);

        let before = normals(stream, POS * hidden);
        self.cpu.write(Buf::Residual, &before).unwrap();
        self.cpu.exec(op, self.context).unwrap();
        let now = self.fill(Buf::Residual, hidden, stream);
        self.cpu.exec(op, self.step).unwrap();
        let query = read(self.cpu, Buf::Query, N * width);

        let (mut queries, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let all = before.chunks(hidden).chain(now.iter().map(Vec::as_slice));
        for (pos, x) in all.enumerate() {
            let x = oracle.rms_norm(&exact(x), norm);
            let turned = |l: Linear, norm: Option<WeightId>| {
                let mut row = oracle.linear(l, &x);
                oracle.heads(&mut row, norm, &rope, pos as u32);
                row
            };
            queries.push(turned(q, q_norm));
            keys.push(turned(k, k_norm));
            values.push(oracle.linear(v, &x));
        }
        if !attend {
            return check(what, &query, &queries[POS..].concat(), worst);
        }
        self.cpu.exec(&Op::Attend { layer }, self.step).unwrap();
        let group = c.heads as usize / c.kv_heads as usize;
        let mut want = Vec::new();
        for (t, row) in query.chunks(width).enumerate() {
            let pos = POS + t;
            let window = c.windows[usize::from(layer)].map_or(pos + 1, |w| w as usize);
            let seen = (pos + 1).saturating_sub(window)..pos + 1;
            for (head, q) in row.chunks(dim).enumerate() {
                let part = head / group * dim..(head / group + 1) * dim;
                let of = |all: &'_ [Vec<Bounded>]| -> Vec<Vec<Bounded>> {
                    all[seen.clone()].iter().map(|row| row[part.clone()].to_vec()).collect()
                };
                let (k, v) = (of(&keys), of(&values));
                let k: Vec<&[Bounded]> = k.iter().map(Vec::as_slice).collect();
                let v: Vec<&[Bounded]> = v.iter().map(Vec::as_slice).collect();
                want.extend(oracle.attend(q, &k, &v));
            }
        }
        check(what, &read(self.cpu, Buf::Context, N * width), &want, worst);
    }
}

#[test]
fn embedding_rows_are_exact() {
    for format in [Format::Bf16, Format::Pairlut] {
        let model = Model::random(&configs()[0].1.to_string(), 7, format);
        let mut cpu = model.cpu(64);
        let hidden = model.program.config.hidden as usize;
        let tokens = [0, 130, 17, 16, 15, 17];
        let step = Step { input: Input::Tokens(&tokens), pos: 0, rows: Rows::None, sample: false };
        cpu.exec(&model.program.ops[0], &step).unwrap();
        let got = read(&mut cpu, Buf::Residual, tokens.len() * hidden);
        for (t, row) in tokens.iter().zip(got.chunks(hidden)) {
            for (col, x) in row.iter().enumerate() {
                assert_eq!(f64::from(*x), model.at(WeightId(0), *t as usize, col));
            }
        }
    }
}
