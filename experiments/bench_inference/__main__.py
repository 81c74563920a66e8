"""The command: ``python -m experiments.bench_inference``."""

from experiments.bench_inference import account, langevin, svi


def main() -> None:
    """Prints every comparison; medians over interleaved repetitions, in brackets the least."""
    for title, part in {
        "The Bayesian account": account,
        "A step of variational inference": svi,
        "Chains: effective samples a second": langevin,
    }.items():
        print(f"\n{title}", flush=True)
        part.main()


if __name__ == "__main__":
    main()
