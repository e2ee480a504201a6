{{/* Alerts, as lists of rules. */}}

{{/* Without those that are disabled, and with everybody's labels. */}}
{{- define "allranks.alerts.render" -}}
{{- $kept := list }}
{{- range .alerts }}
{{- if not (has .alert $.values.metrics.rules.disabled) }}
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
    summary: No allranks operator is there to be scraped.
    description: >-
      Jobs go on training, but nothing starts, restarts or cleans up. Look at `kubectl get pods` and
      `kubectl logs {{ .deploy }}`.
- alert: AllranksNotOneLeader
  expr: sum(allranks_leader{ {{- .at -}} }) != 1
  for: 2m
  labels: {severity: critical}
  annotations:
    summary: "{{ "{{ $value }}" }} replicas of the allranks operator act, instead of one."
    description: >-
      With none, nothing starts or restarts: may the operator create, get and update its Lease? With several, the Lease is
      not held by all of them: are there two releases, or was the Deployment scaled without the chart?
- alert: AllranksWatchSilent
  expr: max by (pod, resource) (allranks_watch_age_seconds{ {{- .at -}} }) > {{ .silent }}
  labels: {severity: warning}
  annotations:
    summary: "The watch of {{ "{{ $labels.resource }}" }} has been silent for {{ "{{ $value | humanizeDuration }}" }}."
    description: >-
      A watch is renewed every {{ .values.settings.watchTimeout }} s. The operator acts on what it last saw, and is restarted when
      this goes on: look for errors of the connection to the API server in `kubectl logs {{ .deploy }}`.
- alert: AllranksQueueGrows
  expr: min_over_time(allranks_queue_depth{ {{- .at -}} }[15m]) > 50
  labels: {severity: warning}
  annotations:
    summary: "For 15 minutes {{ "{{ $value }}" }} jobs or more have been looked at, or wait for that."
    description: >-
      The operator does not keep up. Is the API server slow (allranks_api_request_seconds), or the operator's CPU throttled?
- alert: AllranksReconcileSlow
  expr: histogram_quantile(0.99, sum by (le) (rate(allranks_reconcile_seconds_bucket{ {{- .at -}} }[10m]))) > 0.1
  for: 15m
  labels: {severity: warning}
  annotations:
    summary: "One in a hundred decisions about a job takes {{ "{{ $value | humanizeDuration }}" }} or more."
    description: >-
      Nothing else happens meanwhile: restarts begin late. Is the operator's CPU throttled, or is a job very large?
- alert: AllranksApiErrors
  expr: >-
    sum(rate(allranks_api_requests_total{ {{- .at -}} ,code!~"[123]..|40.|41.|422"}[10m]))
    / sum(rate(allranks_api_requests_total{ {{- .at -}} }[10m])) > 0.1
  for: 10m
  labels: {severity: warning}
  annotations:
    summary: "{{ "{{ $value | humanizePercentage }}" }} of the operator's requests are not answered by the API server."
    description: >-
      Errors of the server or the connection, or 429. The operator tries them again. By code:
      sum by (verb, code) (rate(allranks_api_requests_total[10m])).
- alert: AllranksForbidden
  # A creation that is forbidden may be one that a quota refuses: the job says so.
  expr: sum by (verb) (increase(allranks_api_requests_total{ {{- .at -}} ,code="403",verb!="POST"}[15m])) > 0
  labels: {severity: warning}
  annotations:
    summary: "The operator may not {{ "{{ $labels.verb }}" }} something that it needs."
    description: Its roles differ from those of the chart. `kubectl logs {{ .deploy }}` names what it may not do.
{{- end }}

{{- define "allranks.alerts.jobs" -}}
- alert: AllranksJobsStuckRestarting
  expr: sum by (framework) (max by (framework, phase) (allranks_jobs{ {{- .at -}} ,phase="Restarting"})) > 0
  for: 30m
  labels: {severity: warning}
  annotations:
    summary: "{{ "{{ $labels.framework }}" }}: for 30 minutes there has always been a job that restarts."
    description: >-
      `kubectl get distributedtrainings -A` names it; its conditions say what it waits for. Often pods that find no node
      after one was lost.
- alert: AllranksStartSlow
  expr: >-
    histogram_quantile(0.9, sum by (le, framework) (rate(allranks_job_start_seconds_bucket{ {{- .at -}} }[1h])))
    > {{ .values.metrics.rules.slowStartSeconds }}
  for: 30m
  labels: {severity: info}
  annotations:
    summary: "{{ "{{ $labels.framework }}" }}: one job in ten takes more than {{ "{{ $value | humanizeDuration }}" }} to start."
    description: Nodes that are scaled up, and images that are pulled, are the usual reasons.
- alert: AllranksTimeLost
  # Job-seconds that were lost, of all of them: 300 s for each job that was there every 5 minutes.
  expr: >-
    sum by (framework) (increase(allranks_lost_seconds_total{ {{- .at -}} }[6h]))
    / (sum by (framework) (sum_over_time(max by (framework, phase) (allranks_jobs{ {{- .at -}} ,phase=~"Running|Restarting"})[6h:5m])) * 300)
    > {{ .values.metrics.rules.lostRatio }}
  for: 1h
  labels: {severity: warning}
  annotations:
    summary: "{{ "{{ $labels.framework }}" }}: {{ "{{ $value | humanizePercentage }}" }} of the training time is lost to restarts."
    description: >-
      Why: sum by (reason) (increase(allranks_restarts_total[6h])). More frequent checkpoints lose less at each restart.
{{- end }}
