{{/* Alert rules. */}}

{{/* Removes disabled alerts, and adds the common labels and the page about each alert. */}}
{{- define "allranks.alerts.render" -}}
{{- $kept := list }}
{{- range .alerts }}
{{- if not (has .alert $.values.metrics.rules.disabled) }}
{{- $runbook := printf "%s#%s" $.values.metrics.rules.runbookUrl (lower .alert) }}
{{- $_ := set . "annotations" (set .annotations "runbook_url" $runbook) }}
{{- $kept = append $kept (set . "labels" (merge (dict) $.values.metrics.rules.alertLabels .labels)) }}
{{- end }}
{{- end }}
{{- toYaml $kept }}
{{- end }}

{{- define "allranks.alerts.operator" -}}
- alert: AllranksDown
  expr: absent(allranks_build_info{ {{- .at -}} })
  for: 5m
  labels: {severity: critical}
  annotations:
    summary: No allranks operator is being scraped.
    description: >-
      Running jobs keep training, but no job is started, restarted or cleaned up. Check `kubectl get pods` and
      `kubectl logs {{ .deploy }}`.
- alert: AllranksNotOneLeader
  expr: sum(allranks_leader{ {{- .at -}} }) != 1
  for: 2m
  labels: {severity: critical}
  annotations:
    summary: "{{ "{{ $value }}" }} replicas of the allranks operator are leaders, instead of one."
    description: >-
      Without a leader, no job is started or restarted: check that the operator may create, get and update its Lease. With
      several, they do not share one Lease: check for a second release, or a Deployment scaled without the chart.
- alert: AllranksWatchSilent
  expr: max by (pod, resource) (allranks_watch_age_seconds{ {{- .at -}} }) > {{ .silent }}
  labels: {severity: warning}
  annotations:
    summary: "The watch of {{ "{{ $labels.resource }}" }} has been silent for {{ "{{ $value | humanizeDuration }}" }}."
    description: >-
      A watch is renewed every {{ .values.settings.watchTimeout }} s. The operator acts on its last observed state, and is
      restarted if the silence continues: look for connection errors to the API server in `kubectl logs {{ .deploy }}`.
- alert: AllranksQueueGrows
  expr: min_over_time(allranks_queue_depth{ {{- .at -}} }[15m]) > 50
  labels: {severity: warning}
  annotations:
    summary: "The work queue has held at least {{ "{{ $value }}" }} jobs for 15 minutes."
    description: >-
      The operator does not keep up. Check for a slow API server (allranks_api_request_seconds) or CPU throttling of the operator.
- alert: AllranksReconcileSlow
  expr: histogram_quantile(0.99, sum by (le) (rate(allranks_reconcile_seconds_bucket{ {{- .at -}} }[10m]))) > 0.1
  for: 15m
  labels: {severity: warning}
  annotations:
    summary: "The 99th percentile of the reconcile duration is {{ "{{ $value | humanizeDuration }}" }}."
    description: >-
      Reconciles block each other, so restarts are delayed. Check for CPU throttling of the operator, or a very large job.
- alert: AllranksApiErrors
  expr: >-
    sum(rate(allranks_api_requests_total{ {{- .at -}} ,code!~"[123]..|40.|41.|422"}[10m]))
    / sum(rate(allranks_api_requests_total{ {{- .at -}} }[10m])) > 0.1
  for: 10m
  labels: {severity: warning}
  annotations:
    summary: "{{ "{{ $value | humanizePercentage }}" }} of the operator's requests to the API server fail."
    description: >-
      Server errors, connection errors or 429. The operator retries them. By code:
      sum by (verb, code) (rate(allranks_api_requests_total[10m])).
- alert: AllranksForbidden
  # POST is excluded: a forbidden creation may be due to a quota, which the job reports.
  expr: sum by (verb) (increase(allranks_api_requests_total{ {{- .at -}} ,code="403",verb!="POST"}[15m])) > 0
  labels: {severity: warning}
  annotations:
    summary: "The operator is not allowed to {{ "{{ $labels.verb }}" }} a resource that it needs."
    description: Its roles differ from those of the chart. `kubectl logs {{ .deploy }}` shows the rejected requests.
{{- end }}

{{- define "allranks.alerts.jobs" -}}
- alert: AllranksReportsLost
  expr: max(allranks_jobs_reports_lost{ {{- .at -}} }) > 0
  for: 10m
  labels: {severity: warning}
  annotations:
    summary: "The reports of {{ "{{ $value }}" }} jobs do not arrive."
    description: >-
      The jobs continue, but their progress is unknown and hangs are not detected. `kubectl get dt -A -o yaml` shows
      condition ReportsLost. Check NetworkPolicies, DNS and the Service of the operator, and whether all of the job's
      processes are frozen.
- alert: AllranksCheckpointOverdue
  expr: sum by (job_namespace) (max by (job_namespace) (allranks_jobs_checkpoint_overdue{ {{- .at -}} })) > 0
  for: 5m
  labels: {severity: warning}
  annotations:
    summary: "{{ "{{ $labels.job_namespace }}" }}: {{ "{{ $value }}" }} jobs have stored no checkpoint for three intervals."
    description: >-
      A failure now loses all work since the last checkpoint. `kubectl get dt -n {{ "{{ $labels.job_namespace }}" }} -o yaml` shows
      condition CheckpointOverdue. Check whether the volume is full or slow, and the log of rank 0.
- alert: AllranksHardwareUnhealthy
  expr: max(allranks_jobs_hardware_unhealthy{ {{- .at -}} }) > 0
  for: 10m
  labels: {severity: warning}
  annotations:
    summary: "{{ "{{ $value }}" }} jobs have pods on unhealthy hardware."
    description: >-
      The kubelet reports a device of a pod as unhealthy, or a monitor its node. `kubectl get dt -A -o yaml` shows it in the
      condition HardwareUnhealthy. The jobs continue until the hardware fails them.
- alert: AllranksNodeAvoided
  expr: max by (node) (allranks_node_avoiding_jobs{ {{- .at -}} }) > 1
  for: 10m
  labels: {severity: warning}
  annotations:
    summary: "{{ "{{ $value }}" }} jobs avoid node {{ "{{ $labels.node }}" }}, where they failed."
    description: >-
      `allranks nodes -A` shows the failures on the node. Repair it or cordon it; `allranks nodes forgive
      {{ "{{ $labels.node }}" }} -A` lets the jobs run there again.
- alert: AllranksJobsStuckRestarting
  expr: sum by (job_namespace) (max by (job_namespace, framework) (allranks_jobs{ {{- .at -}} ,phase="Restarting"})) > 0
  for: 30m
  labels: {severity: warning}
  annotations:
    summary: "{{ "{{ $labels.job_namespace }}" }}: at least one job has been restarting for 30 minutes."
    description: >-
      `kubectl get distributedtrainings -n {{ "{{ $labels.job_namespace }}" }}` shows the job; its conditions show what it waits
      for. A common cause is pods that find no node after a node was lost.
- alert: AllranksJobsPending
  expr: max by (job_namespace, reason) (allranks_pending_seconds{ {{- .at -}} }) > {{ .values.metrics.rules.pendingSeconds }}
  for: 5m
  labels: {severity: info}
  annotations:
    summary: "{{ "{{ $labels.job_namespace }}" }}: a job has waited for {{ "{{ $value | humanizeDuration }}" }} ({{ "{{ $labels.reason }}" }})."
    description: >-
      `kubectl get distributedtrainings -n {{ "{{ $labels.job_namespace }}" }} -o wide` shows the job and the reason. Common causes
      are missing capacity, a quota, and an image that cannot be pulled.
- alert: AllranksPoolMissing
  expr: >-
    sum by (job_namespace, reason) (max by (job_namespace, reason)
    (allranks_pending_jobs{ {{- .at -}} ,reason=~"PoolNotFound|PoolNotAllowed|InvalidPool|PoolsNotServed"})) > 0
  for: 10m
  labels: {severity: warning}
  annotations:
    summary: "{{ "{{ $labels.job_namespace }}" }}: {{ "{{ $value }}" }} jobs wait for their TrainingPool ({{ "{{ $labels.reason }}" }})."
    description: >-
      Only the platform team can change this. The condition Running of the jobs names the pool:
      `kubectl get distributedtrainings -n {{ "{{ $labels.job_namespace }}" }} -o wide`.
- alert: AllranksJobsHang
  expr: sum by (job_namespace) (increase(allranks_hangs_total{ {{- .at -}} }[1h])) > 0
  labels: {severity: warning}
  annotations:
    summary: "{{ "{{ $labels.job_namespace }}" }}: jobs made no progress for their hang timeout."
    description: >-
      `status.lastFailure` of the jobs names the rank that is behind, and the logs of the ranks have their stacks. Hangs on the
      same node or network indicate a fault there.
- alert: AllranksJobsFailed
  expr: sum by (job_namespace) (increase(allranks_jobs_finished_total{ {{- .at -}} ,phase="Failed"}[1h])) > {{ .values.metrics.rules.failedJobs }}
  labels: {severity: info}
  annotations:
    summary: "{{ "{{ $labels.job_namespace }}" }}: {{ "{{ $value | humanize }}" }} jobs failed within an hour."
    description: >-
      `kubectl get distributedtrainings -n {{ "{{ $labels.job_namespace }}" }}` lists them, and their condition Failed says why.
      One failed job is usually an error of its program; many at once indicate an image, a volume or a network.
- alert: AllranksStartSlow
  expr: >-
    histogram_quantile(0.9, sum by (le, framework) (rate(allranks_job_start_seconds_bucket{ {{- .at -}} }[1h])))
    > {{ .values.metrics.rules.slowStartSeconds }}
  for: 30m
  labels: {severity: info}
  annotations:
    summary: "{{ "{{ $labels.framework }}" }}: one job in ten takes more than {{ "{{ $value | humanizeDuration }}" }} to start."
    description: Common causes are node scale-up and image pulls.
- alert: AllranksTimeLost
  # Lost job-seconds divided by all job-seconds: 300 s per job in each 5-minute sample.
  expr: >-
    sum by (framework) (increase(allranks_lost_seconds_total{ {{- .at -}} }[6h]))
    / (sum by (framework) (sum_over_time(max by (job_namespace, framework, phase) (allranks_jobs{ {{- .at -}} ,phase=~"Running|Restarting"})[6h:5m])) * 300)
    > {{ .values.metrics.rules.lostRatio }}
  for: 1h
  labels: {severity: warning}
  annotations:
    summary: "{{ "{{ $labels.framework }}" }}: {{ "{{ $value | humanizePercentage }}" }} of the training time is lost to restarts."
    description: >-
      Reasons: sum by (reason) (increase(allranks_restarts_total[6h])). More frequent checkpoints reduce the loss per restart.
{{- end }}
