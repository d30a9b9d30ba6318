//! From nodes of a graph to lists of products.

use std::sync::Arc;

use half::f16;
use ork_linear::Product;
use ork_weights::dequant::TensorType;
use zerocopy::FromBytes;

use crate::buffers::{Held, once, weight_shape};
use crate::engine::{ComputeError, Matrix, Model};
use crate::ggml::{
    DIMENSIONS, FLAG_COMPUTE, HINT_HADAMARD, TYPE_F16, TYPE_F32, TYPE_I32, USAGE_ANY, USAGE_WEIGHTS,
};
use crate::memory::{Node, View, outputs};
use crate::plugin::Plugin;
use crate::tally::Left;

/// Whether an operation is computed here. A look at a few numbers: hosts ask for every node of every graph.
pub(crate) fn takes(
    plugin: &Plugin,
    node: &View<'_>,
    owner: impl Fn(&View<'_>) -> Owner,
) -> Result<(), Left> {
    let ops = &plugin.host.ops;
    let op = node.op();
    if op == ops.none || ops.views.contains(&op) {
        return Ok(());
    }
    let by_expert = op == ops.mul_mat_id;
    if !by_expert && op != ops.mul_mat {
        return Err(Left::Other);
    }
    let (Some(weight), Some(input)) = (node.source(0), node.source(1)) else {
        return Err(Left::Shape);
    };
    let take_all = plugin.engine.settings.take_all;
    let (Some(shape), Some(rows)) = (node.shape(), input.shape()) else { return Err(Left::Shape) };
    if node.parameter(1) == HINT_HADAMARD {
        return Err(Left::Hint);
    }
    let count = if by_expert { rows[2] } else { rows[1] * rows[2] * rows[3] };
    if count < plugin.engine.settings.min_rows && !take_all {
        return Err(Left::Rows);
    }
    let f32_or_f16 = input.kind() == TYPE_F32 || input.kind() == TYPE_F16;
    let size = if input.kind() == TYPE_F16 { 2 } else { 4 };
    let readable = f32_or_f16 && input.strides()[0] == size;
    if !readable || node.kind() != TYPE_F32 || !node.is_packed(4) {
        return Err(Left::Shape);
    }
    if by_expert {
        let ids = node.source(2).ok_or(Left::Shape)?;
        let chosen = ids.shape().ok_or(Left::Shape)?;
        let fits = ids.kind() == TYPE_I32
            && [shape[1], shape[2], shape[3]] == [chosen[0], chosen[1], 1]
            && (rows[1] == 1 || rows[1] == chosen[0])
            && [rows[2], rows[3], chosen[2], chosen[3]] == [chosen[1], 1, 1, 1];
        if !fits {
            return Err(Left::Shape);
        }
    }
    let Some((_, k, n, matrices)) = weight_shape(&weight) else {
        let any = take_all && any_matrices(&weight).is_some();
        return if any { Ok(()) } else { Err(Left::Shape) };
    };
    if (k as usize, n as usize) != (rows[0], shape[0]) {
        return Err(Left::Shape);
    }
    if take_all {
        return any_matrices(&weight).map(drop).ok_or(Left::Shape);
    }
    if !by_expert && matrices != 1 {
        return Err(Left::Shape);
    }
    let is_weight = match owner(&weight) {
        // A loader asks with an empty buffer before it has read anything. Small matrices are no weights.
        Owner::Nobody => k.min(n) >= 32 && plugin.engine.device().is_ok(),
        Owner::Held(held) => match weight.buffer().map(|buffer| buffer.usage) {
            Some(USAGE_WEIGHTS) => held.has(&weight),
            // An RPC server does not say what a buffer is for.
            Some(USAGE_ANY) => {
                plugin.engine.settings.rpc
                    && k.min(n) >= 32
                    && weight.name().text().ends_with(".weight")
                    && held.has(&weight)
                    && plugin.engine.device().is_ok()
            }
            _ => false,
        },
        Owner::Other => false,
    };
    if is_weight { Ok(()) } else { Err(Left::NoWeight) }
}

/// Whether there is nothing to compute for a node.
fn is_idle(plugin: &Plugin, node: &View<'_>) -> bool {
    let (ops, op) = (&plugin.host.ops, node.op());
    node.flags() & FLAG_COMPUTE == 0 || op == ops.none || ops.views.contains(&op)
}

/// The nodes of a graph that is taken whole which are to be computed, each with
/// whether it is a product for the NPU.
pub(crate) fn sorted<'a>(
    plugin: &Plugin,
    nodes: impl Iterator<Item = Node<'a>>,
    owner: impl Fn(&View<'_>) -> Owner,
) -> Vec<(bool, Node<'a>)> {
    let is_ours =
        |node: &Node<'_>| takes(plugin, node, &owner).map_err(|why| plugin.tally.left(why)).is_ok();
    let nodes = nodes.filter(|node| !is_idle(plugin, node));
    nodes.map(|node| (is_ours(&node), node)).collect()
}

/// Whose buffer a tensor is in.
pub(crate) enum Owner {
    /// This library's, and what it holds.
    Held(&'static Held),
    /// This library's, without memory.
    Nobody,
    /// Another backend's, or none.
    Other,
}

/// Products that share their input, and the same choice of experts if there is one.
struct List<'a> {
    input: Node<'a>,
    ids: Option<Node<'a>>,
    products: [Option<(Weights, Node<'a>)>; MOST],
}

/// More than an architecture asks for at once.
const MOST: usize = 8;

/// What a product multiplies with.
enum Weights {
    Of(Arc<Model>, Matrix),
    /// No model's: copied, for tests.
    Once(TensorType, u32),
}

/// Computes nodes in their order.
pub(crate) fn compute<'a>(
    plugin: &Plugin,
    nodes: impl Iterator<Item = Node<'a>>,
    owner: impl Fn(&View<'_>) -> Owner,
) -> Result<(), ComputeError> {
    let ops = &plugin.host.ops;
    let mut list: Option<List<'_>> = None;
    for node in nodes {
        if is_idle(plugin, &node) {
            continue;
        }
        let op = node.op();
        if op != ops.mul_mat && op != ops.mul_mat_id {
            return Err(ComputeError::Tensors("an operation that was not taken"));
        }
        let missing = ComputeError::Tensors("a product without operands");
        let (Some(weight), Some(input)) = (node.operand(0), node.operand(1)) else {
            return Err(missing);
        };
        let ids = if op == ops.mul_mat_id { Some(node.operand(2).ok_or(missing)?) } else { None };
        let found = match owner(&weight) {
            Owner::Held(held) => held.find(&weight)?,
            Owner::Nobody | Owner::Other => None,
        };
        // Only a choice of experts says which matrix of a stack a row goes to.
        let found = found.filter(|(_, matrix)| ids.is_some() || matrix.count == 1);
        let weights = match found {
            Some((model, matrix)) => Weights::Of(model, matrix),
            None => {
                let any = any_matrices(&weight).filter(|_| plugin.engine.settings.take_all);
                let (kind, k) = any.ok_or(ComputeError::Tensors("a weight that is not known"))?;
                Weights::Once(kind, k)
            }
        };
        let same = list.as_ref().is_some_and(|list| list.takes(&input, ids.as_ref(), &weights));
        if !same && let Some(full) = list.take() {
            full.compute(plugin)?;
        }
        let products = [const { None }; MOST];
        let list = list.get_or_insert_with(|| List { input, ids, products });
        if let Some(place) = list.products.iter_mut().find(|place| place.is_none()) {
            *place = Some((weights, node));
        }
    }
    list.map_or(Ok(()), |list| list.compute(plugin))
}

impl<'a> List<'a> {
    fn products(&self) -> impl Iterator<Item = &(Weights, Node<'a>)> {
        self.products.iter().flatten()
    }

    /// Whether a product belongs to the list, and has a place: the same input, choice and model.
    fn takes(&self, input: &Node<'_>, ids: Option<&Node<'_>>, weights: &Weights) -> bool {
        let same_ids = match (&self.ids, ids) {
            (None, None) => true,
            (Some(a), Some(b)) => a.is(b),
            _ => false,
        };
        let same_model = match (self.products().last(), weights) {
            (Some((Weights::Of(a, _), _)), Weights::Of(b, _)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        let has_place = self.products.iter().any(Option::is_none);
        same_ids && same_model && has_place && self.input.is(input)
    }

    fn compute(self, plugin: &Plugin) -> Result<(), ComputeError> {
        let nodes = || self.products().map(|(_, node)| node);
        let out = outputs::<MOST>(nodes(), [Some(&self.input), self.ids.as_ref()])
            .ok_or(ComputeError::Tensors("results that lie on what they are made of"))?;
        let mut out = out.into_iter().flatten();
        let rows = Rows::of(&self.input)?;
        let batch = rows.count();
        plugin.tally.taken(nodes().count(), batch);
        let matrices = || self.products().filter_map(|(weights, _)| weights.matrix());
        match (self.products().next(), &self.ids) {
            (Some((Weights::Of(model, _), _)), None) => {
                let products =
                    matrices().zip(out).map(|(matrix, out)| Product { weight: matrix.first, out });
                model.multiply(batch, &rows.f32s(), products)
            }
            (Some((Weights::Of(model, _), _)), Some(ids)) => {
                let matrices: Vec<Matrix> = matrices().collect();
                let chosen = Chosen::of(ids, &rows)?;
                model.with(|layers| chosen.multiply(layers, &rows, &matrices, out.collect()))?;
                let known = matrices.iter().map(|matrix| matrix.count).sum();
                plugin.tally.experts(chosen.groups().count() * matrices.len(), known);
                Ok(())
            }
            (Some((Weights::Once(kind, k), node)), ids) => {
                let Some(out) = out.next() else { return Ok(()) };
                multiply_once(plugin, node, *kind, *k, &rows, ids.as_ref(), out)
            }
            (None, _) => Ok(()),
        }
    }
}

impl Weights {
    fn matrix(&self) -> Option<Matrix> {
        match self {
            Weights::Of(_, matrix) => Some(*matrix),
            Weights::Once(..) => None,
        }
    }
}

/// The rows of a product's input, each of `k` values.
struct Rows<'a> {
    bytes: &'a [u8],
    halves: bool,
    shape: [usize; DIMENSIONS],
    strides: [usize; DIMENSIONS],
    packed: bool,
}

impl<'a> Rows<'a> {
    fn of(node: &Node<'a>) -> Result<Rows<'a>, ComputeError> {
        let halves = node.kind() == TYPE_F16;
        let size = if halves { 2 } else { 4 };
        let wrong = ComputeError::Tensors("an input that cannot be read");
        let (Some(bytes), Some(shape)) = (node.bytes(), node.shape()) else {
            return Err(wrong);
        };
        if (!halves && node.kind() != TYPE_F32) || node.strides()[0] != size {
            return Err(wrong);
        }
        let (strides, packed) = (node.strides(), node.is_packed(size));
        Ok(Rows { bytes, halves, shape, strides, packed })
    }

    fn k(&self) -> usize {
        self.shape[0]
    }

    fn count(&self) -> usize {
        self.shape[1] * self.shape[2] * self.shape[3]
    }

    /// Adds a row's values.
    fn push(&self, [i1, i2, i3]: [usize; 3], out: &mut Vec<f32>) {
        let [_, s1, s2, s3] = self.strides;
        let start = i1 * s1 + i2 * s2 + i3 * s3;
        let size = if self.halves { 2 } else { 4 };
        let bytes = self.bytes.get(start..start + self.k() * size).unwrap_or_default();
        match self.halves {
            true => {
                out.extend(bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()))
            }
            false => out.extend(
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            ),
        }
    }

    /// All values; where they lie as they are wanted, without a copy.
    fn f32s(&self) -> std::borrow::Cow<'a, [f32]> {
        if self.packed
            && !self.halves
            && let Ok(values) = <[f32]>::ref_from_bytes(self.bytes)
        {
            return values.into();
        }
        let mut values = Vec::with_capacity(self.count() * self.k());
        let [_, n1, n2, n3] = self.shape;
        for i3 in 0..n3 {
            for i2 in 0..n2 {
                for i1 in 0..n1 {
                    self.push([i1, i2, i3], &mut values);
                }
            }
        }
        values.into()
    }
}

/// Which experts the rows of a batch go to.
struct Chosen {
    /// Expert, and place of the result: `used` for each token.
    picks: Vec<(usize, usize)>,
    used: usize,
}

impl Chosen {
    fn of(ids: &Node<'_>, rows: &Rows<'_>) -> Result<Chosen, ComputeError> {
        let wrong = ComputeError::Tensors("a choice of experts that cannot be read");
        let (Some(bytes), Some([used, tokens, _, _])) = (ids.bytes(), ids.shape()) else {
            return Err(wrong);
        };
        let [s0, s1, ..] = ids.strides();
        if tokens != rows.shape[2] || (rows.shape[1] != 1 && rows.shape[1] != used) {
            return Err(wrong);
        }
        let mut picks = Vec::with_capacity(used * tokens);
        for token in 0..tokens {
            for pick in 0..used {
                let at = token * s1 + pick * s0;
                let id = bytes.get(at..at + 4).and_then(|id| <[u8; 4]>::try_from(id).ok());
                let id = id.map(i32::from_le_bytes).and_then(|id| usize::try_from(id).ok());
                picks.push((
                    id.ok_or(ComputeError::Tensors("an expert below zero"))?,
                    token * used + pick,
                ));
            }
        }
        // Rows of an expert stand together, in the order of the batch.
        picks.sort_unstable();
        Ok(Chosen { picks, used })
    }

    /// The picks of each expert that somebody chose.
    fn groups(&self) -> impl Iterator<Item = &[(usize, usize)]> {
        self.picks.chunk_by(|a, b| a.0 == b.0)
    }

    /// Multiplies the rows of each expert that was chosen.
    fn multiply(
        &self,
        layers: &mut ork_linear::Layers,
        rows: &Rows<'_>,
        matrices: &[Matrix],
        mut out: Vec<&mut [f32]>,
    ) -> Result<(), ComputeError> {
        let known = matrices.iter().map(|matrix| matrix.count).min().unwrap_or(0);
        if self.picks.last().is_some_and(|(expert, _)| *expert >= known) {
            return Err(ComputeError::Tensors("an expert that is not there"));
        }
        let mut waiting: Vec<&[(usize, usize)]> = self.groups().collect();
        let weights = |group: &[(usize, usize)]| {
            let expert = group.first().map_or(0, |(expert, _)| *expert);
            matrices.iter().map(move |matrix| matrix.first + expert)
        };
        layers.expect(waiting.iter().flat_map(|group| weights(group)));
        let (mut input, mut results) = (Vec::new(), vec![Vec::new(); matrices.len()]);
        while !waiting.is_empty() {
            let group = waiting.remove(layers.next_ready(waiting.iter().map(|g| weights(g))));
            input.clear();
            for (_, place) in group {
                let (token, pick) = (place / self.used, place % self.used);
                rows.push([pick % rows.shape[1], token, 0], &mut input);
            }
            let places = matrices.iter().zip(&mut results).zip(weights(group));
            let products = places.map(|((matrix, results), weight)| {
                results.clear();
                results.resize(group.len() * matrix.n as usize, 0.0);
                Product { weight, out: results }
            });
            layers.multiply(group.len(), &input, products)?;
            for ((matrix, results), out) in matrices.iter().zip(&results).zip(&mut out) {
                let n = matrix.n as usize;
                for ((_, place), row) in group.iter().zip(results.chunks_exact(n)) {
                    let to = out.get_mut(place * n..(place + 1) * n);
                    let to = to.ok_or(ComputeError::Tensors("results without a place"))?;
                    to.copy_from_slice(row);
                }
            }
        }
        Ok(())
    }
}

/// Type and K of matrices of any kind that can be copied.
fn any_matrices(tensor: &View<'_>) -> Option<(TensorType, u32)> {
    let kind = TensorType::from_ggml(u32::try_from(tensor.kind()).ok()?)?;
    let [k, n, ..] = tensor.shape()?;
    let k = u32::try_from(k).ok()?;
    // The error of one sum alone, beside that sum, says nothing: it may be near zero.
    let readable = n > 1 && tensor.strides()[0] == kind.block_bytes();
    (readable && kind.row_bytes(k.into()).is_some()).then_some((kind, k))
}

/// Multiplies by matrices that are no model's: each is copied, and forgotten.
fn multiply_once(
    plugin: &Plugin,
    node: &Node<'_>,
    kind: TensorType,
    k: u32,
    rows: &Rows<'_>,
    ids: Option<&Node<'_>>,
    out: &mut [f32],
) -> Result<(), ComputeError> {
    let wrong = || ComputeError::Tensors("a matrix that cannot be read");
    let weight = node.operand(0).ok_or_else(wrong)?;
    let [_, n, n2, n3] = weight.shape().ok_or_else(wrong)?;
    let [_, s1, s2, s3] = weight.strides();
    let row = kind.row_bytes(k.into()).ok_or_else(wrong)? as usize;
    let bytes = weight.blocks().ok_or_else(wrong)?;
    let mut matrices = Vec::with_capacity(n2 * n3);
    for i3 in 0..n3 {
        for i2 in 0..n2 {
            let mut matrix = Vec::with_capacity(n * row);
            for i1 in 0..n {
                let start = i1 * s1 + i2 * s2 + i3 * s3;
                matrix.extend_from_slice(bytes.get(start..start + row).ok_or_else(wrong)?);
            }
            matrices.push(matrix);
        }
    }
    let engine = &plugin.engine;
    let width = u32::try_from(n).map_err(|_| wrong())?;
    let mut layers = engine.once(once(engine, kind, k, width, matrices)?)?;
    if let Some(ids) = ids {
        let matrix = Matrix { first: 0, count: n2 * n3, k, n: width, kind };
        return Chosen::of(ids, rows)?.multiply(&mut layers, rows, &[matrix], vec![out]);
    }
    let [_, m1, m2, m3] = rows.shape;
    if m2 % n2 != 0 || m3 % n3 != 0 || out.len() != m1 * m2 * m3 * n {
        return Err(wrong());
    }
    let mut input = Vec::new();
    for (batch, out) in out.chunks_exact_mut(m1 * n).enumerate() {
        let (i2, i3) = (batch % m2, batch / m2);
        input.clear();
        (0..m1).for_each(|i1| rows.push([i1, i2, i3], &mut input));
        let weight = i3 / (m3 / n3) * n2 + i2 / (m2 / n2);
        layers.multiply(m1, &input, [Product { weight, out }])?;
    }
    Ok(())
}
