//! A warm matmul allocates nothing, on one core or three, in one block or many, copying or in place.

mod support;

use rknpu::{Device, Layout, Matmul, MatmulLimits, OpenOptions, Precision, WeightRef};

#[global_allocator]
static COUNTING: ratio::Counting = ratio::Counting;

#[test]
fn a_warm_run_allocates_nothing() {
    let device = Device::with_driver(support::NoOp::driver(), &OpenOptions::new()).unwrap();
    let domain = device.domain(0).unwrap();
    let cores = device.cores().unwrap();
    let limits = MatmulLimits { rows: 64, k: 2080, n: 4096 };
    let mut matmul = Matmul::int8(&domain, &cores, limits).unwrap();
    for (m, k, n) in [(1, 1024, 1024), (32, 2080, 4096), (300, 64, 4096)] {
        let layout = Layout::new(k, n, Precision::Int8).unwrap();
        let weight = domain.alloc(layout.bytes() as usize).unwrap().to_device().unwrap();
        let weight = WeightRef::new(&weight, 0, layout).unwrap();
        let activations = vec![1i8; m * k as usize];
        let mut out = vec![0i32; m * n as usize];
        let stats = matmul.run(&weight, &activations, &mut out).unwrap();
        assert_eq!(stats.cores > 1, m > 1);
        let before = ratio::allocations();
        for _ in 0..100 {
            matmul.run(&weight, &activations, &mut out).unwrap();
        }
        assert_eq!(ratio::allocations() - before, 0, "M={m} K={k} N={n}");

        let m = m.min(matmul.activations().rows(k));
        let before = ratio::allocations();
        let mut sum = 0;
        for _ in 0..100 {
            let mut rows = matmul.activations().lease(m, k).unwrap();
            for row in 0..m {
                rows.row_mut(row).unwrap().for_each(|(_, run)| run.fill(1));
            }
            let rows = rows.to_device().unwrap();
            let mut product = matmul.multiply(&weight, &rows).unwrap();
            while let Some(outputs) = product.next_columns().unwrap() {
                for row in 0..m {
                    outputs.row(row).for_each(|segment| sum += segment.iter().sum::<i32>());
                }
            }
        }
        assert_eq!(ratio::allocations() - before, 0, "in place: M={m} K={k} N={n}, {sum}");

        let rows = matmul.activations().lease(m, k).unwrap().to_device().unwrap();
        let list = [weight; 3];
        let run = |matmul: &mut Matmul| {
            let mut product = matmul.multiply_all(&list, &rows).unwrap();
            while let Some(outputs) = product.next_columns().unwrap() {
                assert!(outputs.weight() < 3);
            }
        };
        // The first list is longer than what there was before.
        run(&mut matmul);
        let before = ratio::allocations();
        (0..100).for_each(|_| run(&mut matmul));
        assert_eq!(ratio::allocations() - before, 0, "lists: M={m} K={k} N={n}");
    }
}
