//! `Attend`: softmax(q·kᵀ·scale)·v, causal, within the layer's window.
//!
//! The order of sums, for each (token, query head), is a function of positions alone:
//!
//! 1. The cache is taken in pages of 256 positions, the first page first.
//! 2. In a page: scores sₖ = (Σ over dimensions, ascending, one fma each, from 0) · scale; m = max sₖ; pₖ = exp(sₖ − m);
//!    l = Σ pₖ in sixteen partial sums (position k in sum k mod 16), folded 8, 4, 2 and 1 apart; a = Σ pₖ·vₖ,
//!    positions ascending, one fma each.
//! 3. Pages are merged as they come: M' = max(M, m), with f = exp(M − M') and g = exp(m − M'):
//!    L' = fma(l, g, L·f), A' = fma(a, g, A·f). The first page is taken as it is.
//! 4. context = A / L.
//!
//! So pages can be computed on different threads (one token, long context) or one after the other (many tokens) with
//! the same result, and so can a prompt in chunks of any size.

use std::ops::Range;

use super::cache::{Cache, PAGE, Vector};
use super::pool::Pool;
use super::simd::{Isa, Kernel, Lanes};
use crate::num::func;

/// Queries that share the loads of keys and values.
const QUERIES: usize = 4;
/// Tokens of a task.
const TOKENS: usize = 8;
/// Multiply-adds below which a fork costs more than it gains.
const WORTH_A_FORK: usize = 100_000;

/// Shapes of attention in one layer.
#[derive(Clone, Copy)]
pub struct Heads {
    /// Query heads.
    pub queries: usize,
    /// Key and value heads.
    pub keys: usize,
    /// Width of a head.
    pub dim: usize,
    /// Multiplies scores.
    pub scale: f32,
    /// Keys a query may see, itself included.
    pub window: Option<u32>,
}

impl Heads {
    /// Query heads of one key head.
    fn group(&self) -> usize {
        self.queries / self.keys
    }

    /// Positions that the token at `pos` sees.
    fn seen(&self, pos: usize) -> Range<usize> {
        let first = self.window.map_or(0, |w| (pos + 1).saturating_sub(w as usize));
        first..pos + 1
    }
}

/// One step's attention in one layer.
pub struct Attention<'a> {
    /// Instructions to use.
    pub isa: Isa,
    /// Threads.
    pub pool: &'a Pool,
    /// Keys and values, those of this step included.
    pub cache: &'a Cache,
    /// Which layer.
    pub layer: usize,
    /// Shapes.
    pub heads: Heads,
    /// Position of the first token.
    pub pos: usize,
    /// `[n][heads·dim]`
    pub query: &'a [f32],
}

/// What is known of one query after some pages: m and l, then a.
type State = [Vector];

/// Vectors of a state: one for m and l, and those of a value.
fn state_width(cache: &Cache) -> usize {
    1 + cache.value_width()
}

/// Vectors of work memory that [`Attention::run`] needs for steps of up to `max_step` tokens in contexts of up to
/// `capacity`.
pub fn work_vectors(cache: &Cache, heads: usize, max_step: usize, capacity: usize) -> usize {
    let tokens = max_step.next_multiple_of(TOKENS);
    heads * state_width(cache) * tokens.max(capacity.div_ceil(PAGE))
}

impl Attention<'_> {
    /// `context[n][heads·dim] ←`; `work` has [`work_vectors`].
    pub fn run(&self, work: &mut [Vector], context: &mut [f32]) {
        let Heads { queries, keys, dim, .. } = self.heads;
        let tokens = self.query.len() / (queries * dim);
        let pages = self.heads.seen(self.pos).start / PAGE..(self.pos + tokens).div_ceil(PAGE);
        let seen = self.heads.seen(self.pos + tokens - 1).len();
        if tokens * seen * queries * dim < WORTH_A_FORK {
            self.whole(keys, tokens, work, context);
        } else if tokens == 1 && pages.len() > 1 {
            self.by_pages(pages, work, context);
        } else {
            self.whole(1, tokens.min(TOKENS), work, context);
        }
    }

    /// Tasks of `heads` key heads and `share` tokens, which take all their pages in turn.
    fn whole(&self, heads: usize, share: usize, work: &mut [Vector], context: &mut [f32]) {
        let Heads { queries, keys, dim, .. } = self.heads;
        let (group, width) = (self.heads.group(), state_width(self.cache));
        let tokens = self.query.len() / (queries * dim);
        let shares = tokens.div_ceil(share);
        let size = share * group * width * heads;
        // [key head][share of tokens][token][query head of the group]
        let work = &mut work[..size * shares * keys / heads];
        self.pool.pieces(work, size, |scratch, i, states| {
            for (j, states) in states.chunks_mut(share * group * width).enumerate() {
                let (head, part) = ((i * heads + j) / shares, (i * heads + j) % shares);
                let first = part * share;
                let count = share.min(tokens - first);
                let states = &mut states[..count * group * width];
                let pages = self.heads.seen(self.pos + first).start / PAGE
                    ..(self.pos + first + count).div_ceil(PAGE);
                let scratch = &mut scratch.attend;
                self.isa.run(Task { of: self, head, first, pages, apart: false, scratch, states });
            }
        });
        let row = queries * dim;
        for (t, context) in context.chunks_exact_mut(row).take(tokens).enumerate() {
            for (q, context) in context.chunks_exact_mut(dim).enumerate() {
                let place = (q / group * shares + t / share) * share + t % share;
                let state = &work[(place * group + q % group) * width..][..width];
                finish(state, context);
            }
        }
    }

    /// One token: a task for each key head and page, merged afterwards.
    fn by_pages(&self, pages: Range<usize>, work: &mut [Vector], context: &mut [f32]) {
        let Heads { keys, dim, .. } = self.heads;
        let (group, width) = (self.heads.group(), state_width(self.cache));
        let size = group * width;
        // [key head][page][query head of the group]
        let work = &mut work[..size * pages.len() * keys];
        self.pool.pieces(work, size, |scratch, i, states| {
            let (head, page) = (i / pages.len(), pages.start + i % pages.len());
            let (pages, scratch) = (page..page + 1, &mut scratch.attend);
            self.isa.run(Task { of: self, head, first: 0, pages, apart: true, scratch, states });
        });
        for (head, work) in work.chunks_exact_mut(size * pages.len()).enumerate() {
            let (first, rest) = work.split_at_mut(size);
            for later in rest.chunks_exact(size) {
                for (state, page) in first.chunks_exact_mut(width).zip(later.chunks_exact(width)) {
                    self.isa.run(Merge { state, page });
                }
            }
            for (g, state) in first.chunks_exact(width).enumerate() {
                finish(state, &mut context[(head * group + g) * dim..][..dim]);
            }
        }
    }
}

/// context = A / L
fn finish(state: &State, context: &mut [f32]) {
    let l = state[0][1];
    for (out, a) in context.iter_mut().zip(state[1..].as_flattened()) {
        *out = a / l;
    }
}

struct Merge<'a> {
    state: &'a mut State,
    page: &'a State,
}

impl Kernel for Merge<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        merge(l, self.state, self.page);
    }
}

/// Step 3 of the module documentation.
#[inline(always)]
fn merge<L: Lanes>(l: L, state: &mut State, page: &State) {
    let [m0, l0, ..] = state[0];
    let [m1, l1, ..] = page[0];
    let m = if m1 > m0 { m1 } else { m0 };
    let (f, g) = (func::exp(m0 - m), func::exp(m1 - m));
    state[0][0] = m;
    state[0][1] = func::fma(l1, g, l0 * f);
    let (f, g) = (l.splat(f), l.splat(g));
    for (a, b) in state[1..].iter_mut().zip(&page[1..]) {
        l.store(l.fma(l.load(b), g, l.mul(l.load(a), f)), a);
    }
}

/// Some tokens, the query heads of one key head, some pages in turn.
struct Task<'a> {
    of: &'a Attention<'a>,
    head: usize,
    /// First token, counted in the step.
    first: usize,
    pages: Range<usize>,
    /// Whether every page starts a state of its own.
    apart: bool,
    scratch: &'a mut Scratch,
    /// `[token][query head of the group][state_width]`
    states: &'a mut [Vector],
}

impl Kernel for Task<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Attention { heads, cache, layer, .. } = *self.of;
        let (group, width) = (heads.group(), state_width(cache));
        // Pages outside, so that a page stays in the cache for all queries.
        for page in self.pages {
            let keys = cache.keys(layer, page, self.head);
            let values = cache.values(layer, page, self.head);
            for (i, states) in self.states.chunks_mut(QUERIES * width).enumerate() {
                let count = states.len() / width;
                let query = |q: usize| {
                    let (token, head) = ((i * QUERIES + q) / group, (i * QUERIES + q) % group);
                    let token = self.first + token;
                    let at = (token * heads.queries + self.head * group + head) * heads.dim;
                    let seen = heads.seen(self.of.pos + token);
                    Query::new(&self.of.query[at..at + heads.dim], seen, page, self.apart)
                };
                let p = Page { keys, values, scale: heads.scale };
                match count {
                    1 => p.add(l, [query(0)], self.scratch, states),
                    2 => p.add(l, [0, 1].map(query), self.scratch, states),
                    3 => p.add(l, [0, 1, 2].map(query), self.scratch, states),
                    _ => p.add(l, [0, 1, 2, 3].map(query), self.scratch, states),
                }
            }
        }
    }
}

/// A query and what it sees of a page.
struct Query<'a> {
    q: &'a [f32],
    /// Positions in the page.
    seen: Range<usize>,
    /// Whether earlier pages have been taken.
    begun: bool,
}

impl<'a> Query<'a> {
    #[inline(always)]
    fn new(q: &'a [f32], seen: Range<usize>, page: usize, apart: bool) -> Query<'a> {
        let start = page * PAGE;
        let clip = |p: usize| p.clamp(start, start + PAGE) - start;
        Query { q, seen: clip(seen.start)..clip(seen.end), begun: seen.start < start && !apart }
    }
}

/// Work memory of one thread.
pub struct Scratch {
    /// Scores, then weights, of the positions of a page.
    weights: [[Vector; PAGE / 16]; QUERIES],
    /// The states that a page alone would give.
    fresh: Vec<Vector>,
}

impl Scratch {
    /// Room for values of `dim`.
    pub fn new(dim: usize) -> Scratch {
        let fresh = vec![[0.0; 16]; QUERIES * (1 + dim.div_ceil(16))];
        Scratch { weights: [[[0.0; 16]; PAGE / 16]; QUERIES], fresh }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.weights) + size_of_val(&*self.fresh)
    }

    /// Overwrites everything, to show that nothing old is read.
    pub fn poison(&mut self) {
        self.weights.as_flattened_mut().fill([f32::NAN; 16]);
        self.fresh.fill([f32::NAN; 16]);
    }
}

/// A key head's share of a page.
struct Page<'a> {
    /// `[group][dim]`
    keys: &'a [Vector],
    /// `[position][vectors of a value]`
    values: &'a [Vector],
    scale: f32,
}

impl Page<'_> {
    /// Takes the page for Q queries.
    #[inline(always)]
    fn add<L: Lanes, const Q: usize>(
        &self,
        l: L,
        queries: [Query<'_>; Q],
        scratch: &mut Scratch,
        states: &mut [Vector],
    ) {
        let Scratch { weights, fresh } = scratch;
        let Some(weights) = weights.first_chunk_mut::<Q>() else { return };
        let start = queries.iter().map(|q| q.seen.start).min().unwrap_or(0);
        let end = queries.iter().map(|q| q.seen.end).max().unwrap_or(0);
        if start >= end {
            return;
        }
        let groups = start / 16..end.div_ceil(16);
        self.scores(l, &queries, groups.clone(), weights);
        let width = states.len() / Q;
        let fresh = &mut fresh[..Q * width];
        for (i, fresh) in fresh.chunks_exact_mut(width).enumerate() {
            fresh.fill([0.0; 16]);
            let seen = &queries[i].seen;
            if !seen.is_empty() {
                let weights = &mut weights[i][groups.clone()];
                [fresh[0][0], fresh[0][1]] = softmax(l, weights, 16 * groups.start, seen);
            }
        }
        self.weigh(l, &queries, weights, fresh);
        let states = states.chunks_exact_mut(width).zip(fresh.chunks_exact(width));
        for (query, (state, fresh)) in queries.iter().zip(states) {
            if query.seen.is_empty() {
                continue;
            }
            if query.begun { merge(l, state, fresh) } else { state.copy_from_slice(fresh) }
        }
    }

    /// `weights[query][group] ←` scaled scores, those of unseen positions included.
    #[inline(always)]
    fn scores<L: Lanes, const Q: usize>(
        &self,
        l: L,
        queries: &[Query<'_>; Q],
        groups: Range<usize>,
        weights: &mut [[Vector; PAGE / 16]; Q],
    ) {
        let mut group = groups.start;
        if L::WIDE {
            while group + 2 <= groups.end {
                self.score_groups::<L, Q, 2>(l, queries, group, weights);
                group += 2;
            }
        }
        for group in group..groups.end {
            self.score_groups::<L, Q, 1>(l, queries, group, weights);
        }
    }

    #[inline(always)]
    fn score_groups<L: Lanes, const Q: usize, const G: usize>(
        &self,
        l: L,
        queries: &[Query<'_>; Q],
        first: usize,
        weights: &mut [[Vector; PAGE / 16]; Q],
    ) {
        let dim = queries[0].q.len();
        let q: [&[f32]; Q] = std::array::from_fn(|i| &queries[i].q[..dim]);
        let keys: [&[Vector]; G] = std::array::from_fn(|g| &self.keys[(first + g) * dim..][..dim]);
        let mut acc = [[l.splat(0.0); G]; Q];
        for d in 0..dim {
            for g in 0..G {
                let key = l.load(&keys[g][d]);
                for i in 0..Q {
                    acc[i][g] = l.fma(l.splat(q[i][d]), key, acc[i][g]);
                }
            }
        }
        let scale = l.splat(self.scale);
        for i in 0..Q {
            for g in 0..G {
                l.store(l.mul(acc[i][g], scale), &mut weights[i][first + g]);
            }
        }
    }

    /// `fresh[query][1..] ← Σ weight·value` over the seen positions.
    #[inline(always)]
    fn weigh<L: Lanes, const Q: usize>(
        &self,
        l: L,
        queries: &[Query<'_>; Q],
        weights: &[[Vector; PAGE / 16]; Q],
        fresh: &mut [Vector],
    ) {
        let width = fresh.len() / Q;
        let start = queries.iter().map(|q| q.seen.start).max().unwrap_or(0);
        let end = queries.iter().map(|q| q.seen.end).min().unwrap_or(0);
        // What all see is taken together; before and after it, each query takes its own.
        let common = if start < end { start..end } else { PAGE..PAGE };
        let own = |fresh: &mut [Vector], part: fn(&Range<usize>, &Range<usize>) -> Range<usize>| {
            for (i, fresh) in fresh.chunks_exact_mut(width).enumerate() {
                let positions = part(&queries[i].seen, &common);
                self.weigh_some(l, [weights[i].as_flattened()], positions, fresh);
            }
        };
        own(fresh, |seen, common| seen.start..seen.end.min(common.start));
        if !common.is_empty() {
            let weights = std::array::from_fn(|i: usize| weights[i].as_flattened());
            self.weigh_some::<L, Q>(l, weights, common.clone(), fresh);
            own(fresh, |seen, common| common.end..seen.end);
        }
    }

    #[inline(always)]
    fn weigh_some<L: Lanes, const Q: usize>(
        &self,
        l: L,
        weights: [&[f32]; Q],
        positions: Range<usize>,
        fresh: &mut [Vector],
    ) {
        if positions.is_empty() {
            return;
        }
        let weights = weights.map(|w| &w[positions.clone()]);
        let width = fresh.len() / Q - 1;
        let values = &self.values[positions.start * width..positions.end * width];
        let mut column = 0;
        if L::WIDE || Q == 1 {
            while column + 4 <= width {
                weigh_columns::<L, Q, 4>(l, weights, values, width, column, fresh);
                column += 4;
            }
        }
        for column in column..width {
            weigh_columns::<L, Q, 1>(l, weights, values, width, column, fresh);
        }
    }
}

/// Adds D vectors of each weighted value, from vector `column` on.
#[inline(always)]
fn weigh_columns<L: Lanes, const Q: usize, const D: usize>(
    l: L,
    weights: [&[f32]; Q],
    values: &[Vector],
    width: usize,
    column: usize,
    fresh: &mut [Vector],
) {
    let mut acc = [[l.splat(0.0); D]; Q];
    for i in 0..Q {
        for d in 0..D {
            acc[i][d] = l.load(&fresh[i * (width + 1) + 1 + column + d]);
        }
    }
    for (k, value) in values.chunks_exact(width).enumerate() {
        let value = &value[column..column + D];
        for i in 0..Q {
            let weight = l.splat(weights[i][k]);
            for d in 0..D {
                acc[i][d] = l.fma(weight, l.load(&value[d]), acc[i][d]);
            }
        }
    }
    for i in 0..Q {
        for d in 0..D {
            l.store(acc[i][d], &mut fresh[i * (width + 1) + 1 + column + d]);
        }
    }
}

/// Scores of the positions from `first` on → weights, in place; those of unseen positions become 0. Returns m and l.
#[inline(always)]
fn softmax<L: Lanes>(l: L, weights: &mut [Vector], first: usize, seen: &Range<usize>) -> [f32; 2] {
    let mut most = l.splat(f32::NEG_INFINITY);
    for (i, group) in weights.iter_mut().enumerate() {
        let start = first + 16 * i;
        if start < seen.start || start + 16 > seen.end {
            for (lane, score) in group.iter_mut().enumerate() {
                if !seen.contains(&(start + lane)) {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
        most = l.max(l.load(group), most);
    }
    let mut lanes = [0.0; 16];
    l.store(most, &mut lanes);
    let most = lanes.into_iter().fold(f32::NEG_INFINITY, |m, x| if x > m { x } else { m });
    for weight in weights.as_flattened_mut() {
        *weight = func::exp(*weight - most);
    }
    let mut sums = l.splat(0.0);
    for group in weights.iter() {
        sums = l.add(sums, l.load(group));
    }
    l.store(sums, &mut lanes);
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    [most, lanes[0]]
}
