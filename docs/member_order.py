"""Order of the reference: the names that are used first, then the others by alphabet."""

import importlib

# The first names of a module, in the order of use.
FIRST = {
    "dpjax.training": "train TrainResult Report Budget private_step PrivateStep TrainState StepInfo"
    " split_records SplitRecords MeshSharding",
    "dpjax.rehearsal": "rehearse Training Inference Release World prior_predictive PublicRecords"
    " Rehearsal Setting Calibration",
    "dpjax.tuning": "tune Study",
    "dpjax.mechanisms": "SubsampledGaussian mechanism_of Mechanism Gaussian Laplace"
    " DiscreteGaussian DiscreteLaplace ExponentialMechanism PermuteAndFlip NoisyMax"
    " RandomizedResponse Composition ClippedSum",
    "dpjax.sampling": "PoissonSampling TruncatedPoissonSampling CyclicPoissonSampling"
    " FixedSizeSampling AllocatedSampling ShuffledEpochs Sampling",
    "dpjax.gradients": "clipped_grad ClippedGradInfo AutomaticClip PSACClip QuantileClip SlackClip"
    " AdaptiveClip GradientAndSlots explain Explanation total_l2_clip l2_sensitivity unit_loss"
    " group_by_unit",
    "dpjax.transforms": "noisy_sgd noisy_adam add_gaussian_noise clip_per_example params_ema"
    " BandedToeplitz BLT InverseSquareRoot LambdaCGD Dense Correlation CorrelationReport",
    "dpjax.accounting": "calibrate epsilon epsilon_bounds EpsilonBounds max_num_steps",
    "dpjax.accounting.tradeoff": "TradeOff Gaussian Laplace compose subsample mixture group",
    "dpjax.sensitivity": "Sensitivity of_mean of_sum of_count of_histogram of_quantile_counts"
    " of_second_moment clip_to clip_norm_to to_grid",
    "dpjax.audit": "audit AuditReport one_run OneRunReport check_step StepReport check_program"
    " ProgramReport canary_records canary_loss orthogonal_canaries",
    "dpjax.statistics": "release plan count histogram mean variance quantile"
    " covariance correlation regression"
    " StatisticsPlan StatisticsRelease Estimate Query",
    "dpjax.pate": "train_teachers count_votes LNMax GNMax ConfidentGNMax predict_labels Answers"
    " certificate PATECertificate",
    "dpjax.federated": "FederatedSum ClippedGradientSum Parties run_round Result Adversary"
    " gradient_training svi_training Training",
    "dpjax.bayes.variational": "DPSVI DPSVIResult NoiseAwarePosterior"
    " MeanFieldPosterior FullCurvaturePosterior DPSVIState ClippingReport",
    "dpjax.bayes.conjugate": "noise_aware_posterior naive_posterior SufficientStatisticsMechanism"
    " BetaBinomial DirichletMultinomial GammaPoisson NormalKnownVariance NormalUnknownVariance",
    "dpjax.bayes.regression": "AdaSSP PerturbedStatistics RegressionBounds PrivateBounds"
    " released_regression noise_aware_posterior prediction_interval coefficient_interval",
    "dpjax.bayes.sgmcmc": "private_chains sgld psgld sghmc sample ChainResult",
    "dpjax.bdp": "TrainingAccountant init update epsilon delta certificate BDPCertificate",
}


def sort_by_use() -> None:
    """Moves the names of `FIRST` to the front of their modules' ``__all__``, which autodoc follows.

    Raises:
      ValueError: if a name is not public any more.
    """
    for name, text in FIRST.items():
        module, first = importlib.import_module(name), text.split()
        missing = set(first) - set(module.__all__)
        if missing:
            raise ValueError(f"{name} has no {', '.join(sorted(missing))}: remove it from FIRST")
        module.__all__ = [*first, *(other for other in module.__all__ if other not in first)]
